//! A card with its context and its kernels open, and no memory of ours on it yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::images::{CardImages, ImageError, Images, OPS};
use super::{CardFacts, Context, Driver, DriverError, Function, Module, Unavailable};
use crate::backend::gpu::{Kernel, Variant};

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
    /// Opens the context and loads the kernels that every model needs.
    ///
    /// # Errors
    /// There is no code for the card, or the driver refuses.
    pub fn open(driver: &Arc<dyn Driver>, facts: CardFacts, images: Images) -> Result<OpenCard, Unavailable> {
        let vendor = facts.vendor;
        let damaged = |error: ImageError| Unavailable::Images { vendor, error };
        let Some(images) = images.for_card(&facts.architecture).map_err(damaged)? else {
            return Err(Unavailable::NoCode { vendor, card: facts.name, architecture: facts.architecture.to_string() });
        };
        let failed = |error| Unavailable::Driver { vendor, error };
        let context = Context::open(Arc::clone(driver), facts).map_err(failed)?;
        let card = OpenCard { images, modules: Mutex::default(), context };
        match card.module(OPS) {
            Ok(_) => Ok(card),
            Err(NoKernel::Driver(error)) => Err(failed(error)),
            Err(NoKernel::Image(error)) => Err(damaged(error)),
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn facts(&self) -> &CardFacts {
        self.context.facts()
    }

    /// Bytes that the kernels of block formats can still take on the card.
    pub fn code_bytes(&self) -> u64 {
        self.images.code_bytes()
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
