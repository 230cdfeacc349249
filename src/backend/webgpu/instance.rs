//! Finds cards.

use std::sync::OnceLock;

use wgpu::{Adapter, Backends, DeviceType, Features, Instance, InstanceDescriptor, InstanceFlags};

use super::backend::WebGpuBackend;
use super::device::adapter_kind;
use super::memory::memory_facts;
use super::shader::CACHES;
use super::trial::{Tried, fastest, remember, remembered, try_tiles};
use super::tuning::{AdapterKind, Tile, Tuning};
use crate::backend::discovery::{Absent, CardLimits, CardOptions, FoundCard, Interface, NamedCard, PciPlace};
use crate::backend::{Backend, BackendError, Finder};
use crate::program::KvFormat;

/// The cards that wgpu reaches by one interface.
#[derive(Debug)]
pub struct WebGpuFinder {
    interface: Interface,
    backends: Backends,
    /// Asked for once a process: drivers are slow to load, and some write to the terminal each time.
    adapters: OnceLock<Vec<Adapter>>,
}

pub static VULKAN: WebGpuFinder = WebGpuFinder::new(Interface::Vulkan, Backends::VULKAN);
pub static DX12: WebGpuFinder = WebGpuFinder::new(Interface::Dx12, Backends::DX12);
pub static METAL: WebGpuFinder = WebGpuFinder::new(Interface::Metal, Backends::METAL);

/// Names of PCI vendors.
const VENDORS: [(u32, &str); 7] = [
    (0x1002, "AMD"),
    (0x10de, "NVIDIA"),
    (0x8086, "Intel"),
    (0x106b, "Apple"),
    (0x13b5, "ARM"),
    (0x5143, "Qualcomm"),
    (0x10005, "Mesa"),
];

impl WebGpuFinder {
    const fn new(interface: Interface, backends: Backends) -> WebGpuFinder {
        WebGpuFinder { interface, backends, adapters: OnceLock::new() }
    }

    /// All adapters of the interface, in the driver's order.
    fn adapters(&self) -> &[Adapter] {
        self.adapters.get_or_init(|| {
            let descriptor = InstanceDescriptor {
                backends: self.backends,
                flags: InstanceFlags::empty(),
                ..InstanceDescriptor::new_without_display_handle()
            };
            pollster::block_on(Instance::new(descriptor).enumerate_adapters(self.backends))
        })
    }

    /// Opens a card with kernels made for other numbers than the card's own, to try them.
    ///
    /// # Errors
    /// The card is gone, or the driver refuses a device.
    pub fn open_tuned(
        &self,
        card: &NamedCard,
        options: &CardOptions,
        tuning: Option<Tuning>,
    ) -> Result<WebGpuBackend, BackendError> {
        WebGpuBackend::new(self.adapter(card)?, &card.id, options.clone(), tuning)
    }

    fn adapter(&self, card: &NamedCard) -> Result<&Adapter, BackendError> {
        let gone = || BackendError::Rejected { device: card.id.clone(), problem: "the card is gone".into() };
        self.adapters().get(card.card.driver_index as usize).ok_or_else(gone)
    }

    /// Tries every kind of matrix kernels with tiles that a card can run, whatever it would be given.
    ///
    /// # Errors
    /// The card is gone, or the plain kernels do not run.
    pub fn try_tiles(&self, card: &NamedCard) -> Result<Vec<Tried>, BackendError> {
        let kind = adapter_kind(self.adapter(card)?);
        // Kernels that are tried are not worth keeping.
        let open = |tuning| self.open_tuned(card, &CardOptions::default(), Some(tuning));
        let base = Tuning::of(&AdapterKind { software: false, ..kind });
        try_tiles(base, Tile::ALL.into_iter().filter(|tile| kind.has(*tile)), open)
    }

    /// The numbers for a card, with the tiles that were fastest when they were tried on it: at its first start, or at every one
    /// where there is no folder to remember it in. The sentence says what was chosen.
    ///
    /// # Errors
    /// The card is gone, or the plain kernels do not run.
    pub fn tuning_for(&self, card: &NamedCard, options: &CardOptions) -> Result<(Tuning, String), BackendError> {
        let adapter = self.adapter(card)?;
        let (kind, info) = (adapter_kind(adapter), adapter.get_info());
        let tuning = Tuning::of(&kind);
        if tuning.tile == Tile::None {
            return Ok((tuning, String::new()));
        }
        let known = options.cache_folder.as_ref().and_then(|folder| remembered(folder, &info, |tile| kind.has(tile)));
        if let Some(tile) = known {
            return Ok((tuning.with_tile(tile), format!("; {} tiles were the fastest", tile.name())));
        }
        let tile = fastest(&self.try_tiles(card)?);
        let kept = options.cache_folder.as_ref().map_or(Ok(()), |folder| remember(folder, &info, tile));
        let problem = kept.err().map_or_else(String::new, |e| format!(", which cannot be remembered: {e}"));
        Ok((tuning.with_tile(tile), format!("; {} tiles are the fastest{problem}", tile.name())))
    }

    fn card(&self, index: usize, adapter: &Adapter) -> FoundCard {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let mut card = FoundCard::new(self.interface, index as u32, info.name.clone());
        card.vendor = VENDORS.iter().find(|(id, _)| *id == info.vendor).map_or_else(String::new, |(_, name)| (*name).into());
        card.driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_string();
        card.integrated = info.device_type == DeviceType::IntegratedGpu;
        card.software = info.device_type == DeviceType::Cpu;
        card.pci = info.device_pci_bus_id.parse::<PciPlace>().ok();
        card.limits = CardLimits {
            max_buffer_bytes: Some(limits.max_buffer_size),
            max_binding_bytes: Some(limits.max_storage_buffer_binding_size),
            alignment_bytes: Some(limits.min_storage_buffer_offset_alignment),
        };
        card.features = features(adapter);
        match memory_facts(adapter) {
            Some(facts) => {
                card.total_bytes = facts.total_bytes;
                // Without a budget all of the heap is taken for free: said among the features.
                card.free_bytes = facts.free_bytes.unwrap_or(facts.total_bytes);
                card.uuid = facts.uuid;
                if facts.free_bytes.is_none() {
                    card.features.push("no memory budget: all memory is assumed to be free".into());
                }
                if self.interface == Interface::Metal {
                    card.features.push("its memory is the working set that Metal recommends".into());
                }
            }
            None => card.unusable = Some(format!("{} does not say how much memory the card has", self.interface.name())),
        }
        if limits.min_storage_buffer_offset_alignment > 256 {
            card.unusable = Some("it wants buffers aligned to more than 256 bytes".into());
        }
        card
    }
}

fn features(adapter: &Adapter) -> Vec<String> {
    let known = [
        (Features::SHADER_F16, "f16"),
        (Features::SUBGROUP, "subgroups"),
        (Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative matrices"),
        (Features::PIPELINE_CACHE, "pipeline cache"),
    ];
    let has = adapter.features();
    known.into_iter().filter(|(feature, _)| has.contains(*feature)).map(|(_, name)| name.to_string()).collect()
}

impl Finder for WebGpuFinder {
    fn interface(&self) -> Interface {
        self.interface
    }

    fn find(&self) -> Result<Vec<FoundCard>, Absent> {
        let cards: Vec<FoundCard> = self.adapters().iter().enumerate().map(|(i, adapter)| self.card(i, adapter)).collect();
        if cards.is_empty() { Err(Absent(format!("no {} driver with a card", self.interface.name()))) } else { Ok(cards) }
    }

    fn free_bytes(&self, card: &FoundCard) -> Option<u64> {
        memory_facts(self.adapters().get(card.driver_index as usize)?)?.free_bytes
    }

    fn kv_formats(&self) -> &'static [KvFormat] {
        CACHES
    }

    fn open(&self, card: &NamedCard, options: &CardOptions) -> Result<Box<dyn Backend>, BackendError> {
        let (tuning, choice) = self.tuning_for(card, options)?;
        let mut backend = self.open_tuned(card, options, Some(tuning))?;
        backend.note(&choice);
        Ok(Box::new(backend))
    }
}
