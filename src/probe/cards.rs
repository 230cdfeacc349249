//! From what backends found to cards of the planner.

use crate::backend::discovery::{CardRates, DriverModel, FoundCard, Interface, NamedCard, Standing, Survey};
use crate::plan::{BackendKind, Card, DriverKind, Host, MAX_SIZE_BYTES, Os, Size};

/// What the planner calls the cards of an interface.
pub fn kind_of(interface: Interface) -> BackendKind {
    match interface {
        Interface::Cuda => BackendKind::Cuda,
        Interface::Hip => BackendKind::Hip,
        Interface::Vulkan => BackendKind::Vulkan,
        Interface::Dx12 => BackendKind::Dx12,
        Interface::Metal => BackendKind::Metal,
    }
}

/// `None` for what is driven by no interface: the CPU, and cards that it plays.
pub fn interface_of(kind: BackendKind) -> Option<Interface> {
    Interface::ALL.into_iter().find(|interface| kind_of(*interface) == kind)
}

/// All cards that can take part, also those that must be named.
pub fn planned(survey: &Survey, host: &Host, mut rates: impl FnMut(&FoundCard) -> CardRates) -> Vec<Card> {
    let usable = survey.cards.iter().filter(|c| !matches!(c.standing, Standing::Unusable(_)));
    usable.map(|named| card(named, host, rates(&named.card))).collect()
}

/// Whether the card's memory is RAM.
pub fn shares_host_memory(found: &FoundCard) -> bool {
    found.integrated || found.software
}

fn card(named: &NamedCard, host: &Host, rates: CardRates) -> Card {
    let found = &named.card;
    let driver = match found.driver_model {
        // WSL reaches the card of the Windows below it.
        DriverModel::Linux if host.os == Os::Wsl => DriverKind::Wddm,
        DriverModel::Linux => DriverKind::Linux,
        DriverModel::Wddm => DriverKind::Wddm,
        DriverModel::Tcc => DriverKind::Tcc,
        DriverModel::Macos => DriverKind::Macos,
    };
    // Some drivers write the largest number there is for no limit.
    let limit = |bytes: Option<u64>| bytes.filter(|b| (1 << 20..=MAX_SIZE_BYTES).contains(b)).map(Size);
    Card {
        uuid: found.uuid.clone(),
        pci: found.pci.map(|place| place.to_string()),
        free: Size(found.free_bytes.min(found.total_bytes)),
        opened: found.opened,
        drives_display: found.drives_display,
        by_name_only: match &named.standing {
            Standing::ByName(why) => Some(why.clone()),
            Standing::Usable | Standing::Unusable(_) => None,
        },
        shares_host_memory: shares_host_memory(found),
        memory_gbs: rates.memory_gbs,
        bus_gbs: rates.bus_gbs,
        bus_median_gbs: rates.bus_median_gbs,
        compute_tflops: rates.compute_tflops,
        max_buffer: limit(found.limits.max_buffer_bytes),
        max_binding: limit(found.limits.max_binding_bytes),
        alignment: found.limits.alignment_bytes.filter(|a| a.is_power_of_two()),
        context_bytes: found.driver_bytes.context_bytes.map(Size),
        module_bytes: found.driver_bytes.module_bytes.map(Size),
        library_bytes: found.driver_bytes.library_bytes.map(Size),
        graph_bytes: found.driver_bytes.graph_bytes.map(Size),
        ..Card::new(named.id.clone(), found.name.clone(), kind_of(found.interface), driver, Size(found.total_bytes))
    }
}
