//! A card with its context and its kernels open, and no memory of ours on it yet.

use std::sync::Arc;

use super::images::{Image, choose};
use super::{CardFacts, Context, Driver, DriverError, Function, Module, Unavailable};

#[derive(Debug)]
pub struct OpenCard {
    module: Arc<Module>,
    context: Arc<Context>,
}

impl OpenCard {
    /// Opens the context and loads the kernels.
    ///
    /// # Errors
    /// There is no code for the card, or the driver refuses.
    pub fn open(driver: &Arc<dyn Driver>, facts: CardFacts, images: &'static [Image]) -> Result<OpenCard, Unavailable> {
        let vendor = facts.vendor;
        let Some(image) = choose(images, &facts) else {
            return Err(Unavailable::NoCode { vendor, card: facts.name, architecture: facts.architecture.to_string() });
        };
        let failed = |error| Unavailable::Driver { vendor, error };
        let context = Context::open(Arc::clone(driver), facts).map_err(failed)?;
        let module = Module::load(&context, image.bytes).map_err(failed)?;
        Ok(OpenCard { module, context })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn facts(&self) -> &CardFacts {
        self.context.facts()
    }

    /// A kernel by its name.
    pub fn function(&self, name: &str) -> Result<Function, DriverError> {
        Function::find(&self.module, name)
    }
}
