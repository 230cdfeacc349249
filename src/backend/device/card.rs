//! A card with its context and its kernels open, and no memory of ours on it yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::call::{Operands, start};
use super::images::{CardImages, ImageError, Images, OPS};
use super::{CardFacts, Context, Driver, DriverError, Function, Module, Stream, Unavailable};
use crate::backend::gpu::args::RepeatArgs;
use crate::backend::gpu::{Kernel, Operand, Variant};

#[derive(Debug)]
pub struct OpenCard {
    images: CardImages,
    /// By unit.
    modules: Mutex<HashMap<String, Arc<Module>>>,
    context: Arc<Context>,
}

/// Why a kernel cannot be had.
#[derive(Debug)]
pub enum NoKernel {
    Image(ImageError),
    Driver(DriverError),
}

impl OpenCard {
    /// Opens the context, loads the kernels that every model needs, and launches one: what drivers put off until then, they
    /// take here, so that free memory that is read afterwards is the truth.
    ///
    /// # Errors
    /// There is no code for the card, or the driver refuses.
    pub fn open(driver: &Arc<dyn Driver>, facts: CardFacts, images: Images) -> Result<OpenCard, Unavailable> {
        let vendor = facts.vendor;
        let images = images_for(images, &facts)?;
        let failed = |error| Unavailable::Driver { vendor, error };
        let context = Context::open(Arc::clone(driver), facts).map_err(failed)?;
        let card = OpenCard { images, modules: Mutex::default(), context };
        match card.warm() {
            Ok(()) => Ok(card),
            Err(NoKernel::Driver(error)) => Err(failed(error)),
            Err(NoKernel::Image(error)) => Err(Unavailable::Images { vendor, error }),
        }
    }

    /// Runs a kernel that does nothing.
    fn warm(&self) -> Result<(), NoKernel> {
        let variant = Variant { kernel: Kernel::Repeat, format: None, gated: false, batch: 0, cache: None };
        let function = self.function(&variant)?;
        let args = RepeatArgs { x_at: 0, x_stride: 0, out_at: 0, out_stride: 0, x_width: 1, width: 0 };
        let nothing = Operands { at: [0; Operand::ALL.len()] };
        let run = || {
            let stream = Stream::new(&self.context)?;
            // SAFETY: rows of no columns: nothing is read or written.
            unsafe { start(&stream, &function, [1; 3], &nothing, &args.into())? };
            stream.synchronise()
        };
        run().map_err(NoKernel::Driver)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn facts(&self) -> &CardFacts {
        self.context.facts()
    }

    fn module(&self, unit: &str) -> Result<Arc<Module>, NoKernel> {
        let unit = if self.images.is_whole() { OPS } else { unit };
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(unit) {
            return Ok(Arc::clone(module));
        }
        let image = self.images.load(unit).map_err(NoKernel::Image)?;
        let module = Module::load(&self.context, &image).map_err(NoKernel::Driver)?;
        modules.insert(unit.to_owned(), Arc::clone(&module));
        Ok(module)
    }

    /// The kernel of a kind.
    pub fn function(&self, variant: &Variant) -> Result<Function, NoKernel> {
        let module = self.module(&unit_of(variant))?;
        Function::find(&module, &entry_of(variant)).map_err(NoKernel::Driver)
    }
}

/// The kernels for a card.
///
/// # Errors
/// There are none, or they are damaged.
pub fn images_for(images: Images, facts: &CardFacts) -> Result<CardImages, Unavailable> {
    let vendor = facts.vendor;
    let found = images.for_card(&facts.architecture).map_err(|error| Unavailable::Images { vendor, error })?;
    found.ok_or_else(|| Unavailable::NoCode { vendor, card: facts.name.clone(), architecture: facts.architecture.to_string() })
}

/// Kernels of one block format are a unit; element types of caches are not such.
fn unit_of(variant: &Variant) -> String {
    match variant.format {
        Some(format) if variant.kernel.info().is_per_format() => format.name().to_lowercase(),
        _ => OPS.to_owned(),
    }
}

/// The kernel's name in the images, where some kinds share one: vector kernels see from their arguments whether they are gated,
/// and two rows are worked on like four.
pub fn entry_of(variant: &Variant) -> String {
    let mut shared = *variant;
    if matches!(shared.kernel, Kernel::MatVec | Kernel::ExpertVec) {
        shared.gated = false;
    }
    if shared.batch == 2 {
        shared.batch = 4;
    }
    shared.name()
}
