//! Finds a vendor's cards and opens them.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::budget::memory_of;
use super::card::{OpenCard, images_for};
use super::display::{CONNECTORS, shows_picture};
use super::images::Images;
use super::rates::measure;
use super::target::target;
use super::{Architecture, CardFacts, Context, DeviceBackend, Driver, DriverError, MemoryModel, Unavailable, Vendor};
use crate::backend::discovery::{
    Absent, CardOptions, CardRates, DriverBytes, DriverModel, FoundCard, Interface, NamedCard, PciPlace,
};
use crate::backend::{Backend, BackendError, Finder};
use crate::program::KvFormat;

/// How a vendor's driver is opened.
pub type OpenDriver = fn() -> Result<Arc<dyn Driver>, Unavailable>;

/// The cards of one vendor.
#[derive(Debug)]
pub struct DeviceFinder {
    vendor: Vendor,
    images: Images,
    open: OpenDriver,
    /// Opened with the first question.
    driver: OnceLock<Result<Arc<dyn Driver>, Unavailable>>,
}

impl DeviceFinder {
    pub const fn new(vendor: Vendor, images: Images, open: OpenDriver) -> DeviceFinder {
        DeviceFinder { vendor, images, open, driver: OnceLock::new() }
    }

    /// A driver that is open already.
    pub fn with_driver(driver: Arc<dyn Driver>, images: Images) -> DeviceFinder {
        let vendor = driver.vendor();
        // Never called: the driver is there.
        let open = || Err(Unavailable::NoCards { vendor: Vendor::Nvidia });
        DeviceFinder { vendor, images, open, driver: OnceLock::from(Ok(driver)) }
    }

    fn driver(&self) -> Result<&Arc<dyn Driver>, Absent> {
        self.driver.get_or_init(self.open).as_ref().map_err(|unavailable| Absent(unavailable.to_string()))
    }

    /// A card without its context.
    fn card(&self, ordinal: u32) -> Result<(&Arc<dyn Driver>, CardFacts), Unavailable> {
        let vendor = self.vendor;
        let driver = self.driver.get_or_init(self.open).as_ref().map_err(Clone::clone)?;
        let facts = driver.card(ordinal).map_err(|error| Unavailable::Driver { vendor, error })?;
        Ok((driver, facts))
    }

    /// Its context alone, for as long as a question takes.
    fn context(&self, ordinal: u32) -> Option<Arc<Context>> {
        let (driver, facts) = self.card(ordinal).ok()?;
        Context::open(Arc::clone(driver), facts).ok()
    }

    fn found(&self, driver: &Arc<dyn Driver>, facts: CardFacts) -> FoundCard {
        let mut card = described(&facts, driver.version());
        let failed = |error| Unavailable::Driver { vendor: self.vendor, error };
        let read = images_for(self.images, &facts).and_then(|images| {
            let context = Context::open(Arc::clone(driver), facts).map_err(failed)?;
            Ok((memory_of(&context).map_err(failed)?, images.code_bytes()))
        });
        match read {
            Ok((memory, code_bytes)) => {
                card.free_bytes = memory.free_bytes;
                card.total_bytes = card.total_bytes.min(memory.total_bytes);
                // The context was open when free memory was read; kernels are loaded when a model is opened.
                card.driver_bytes = DriverBytes {
                    context_bytes: Some(0),
                    module_bytes: Some(code_bytes),
                    library_bytes: Some(0),
                    graph_bytes: None,
                };
            }
            Err(why) => card.unusable = Some(why.to_string()),
        }
        card
    }

    /// A card of which the driver does not even tell what it is.
    fn unknown(&self, ordinal: u32, error: DriverError) -> FoundCard {
        let name = format!("{} card {ordinal}", self.vendor.name());
        FoundCard { unusable: Some(error.to_string()), ..FoundCard::new(self.interface(), ordinal, name) }
    }
}

fn interface(vendor: Vendor) -> Interface {
    match vendor {
        Vendor::Nvidia => Interface::Cuda,
        Vendor::Amd => Interface::Hip,
    }
}

fn described(facts: &CardFacts, version: &str) -> FoundCard {
    let capability = match &facts.architecture {
        Architecture::Sm(capability) => format!("{}.{}", capability / 10, capability % 10),
        Architecture::Gfx(name) => name.clone(),
    };
    let pci: Option<PciPlace> = facts.pci.as_deref().and_then(|place| place.parse().ok());
    FoundCard {
        vendor: facts.vendor.maker().into(),
        driver: format!("{} {version}", facts.vendor.name()),
        driver_model: match facts.memory_model {
            MemoryModel::Wddm => DriverModel::Wddm,
            MemoryModel::Tcc => DriverModel::Tcc,
            MemoryModel::Direct => DriverModel::usual(),
        },
        uuid: facts.uuid.clone(),
        pci,
        total_bytes: facts.total_bytes,
        integrated: facts.integrated,
        drives_display: facts.drives_display || pci.is_some_and(|pci| shows_picture(Path::new(CONNECTORS), pci)),
        compute_units: Some(facts.multiprocessors),
        capability: Some(capability),
        features: vec![format!("{} threads in step", facts.warp_threads)],
        ..FoundCard::new(interface(facts.vendor), facts.ordinal, facts.name.clone())
    }
}

impl Finder for DeviceFinder {
    fn interface(&self) -> Interface {
        interface(self.vendor)
    }

    /// Opens the context of each card in turn, without which no driver tells what is free, and gives it back. Nothing is loaded.
    fn find(&self) -> Result<Vec<FoundCard>, Absent> {
        let driver = self.driver()?;
        let failed = |error| Absent(Unavailable::Driver { vendor: self.vendor, error }.to_string());
        let count = driver.count().map_err(failed)?;
        if count == 0 {
            return Err(Absent(Unavailable::NoCards { vendor: self.vendor }.to_string()));
        }
        let cards = (0..count).map(|ordinal| match driver.card(ordinal) {
            Ok(facts) => self.found(driver, facts),
            Err(error) => self.unknown(ordinal, error),
        });
        Ok(cards.collect())
    }

    fn free_bytes(&self, card: &FoundCard) -> Option<u64> {
        let context = self.context(card.driver_index)?;
        Some(memory_of(&context).ok()?.free_bytes)
    }

    fn kv_formats(&self) -> &'static [KvFormat] {
        target().caches
    }

    fn measure(&self, card: &FoundCard) -> CardRates {
        self.context(card.driver_index).and_then(|context| measure(&context).ok()).unwrap_or_default()
    }

    fn open(&self, card: &NamedCard, options: &CardOptions) -> Result<Box<dyn Backend>, BackendError> {
        let open = self.card(card.card.driver_index).and_then(|(driver, facts)| OpenCard::open(driver, facts, self.images));
        let open = open.map_err(|why| BackendError::Rejected { device: card.id.clone(), problem: why.to_string() })?;
        Ok(Box::new(DeviceBackend::new(open, card.id.clone(), Arc::clone(&options.cancel))?))
    }
}
