//! Which cards this PC has, as the backends report them: plain data, no driver and no plan. A backend adds itself to
//! [`FINDERS`](super::FINDERS) with one [`Finder`]; everything that looks for cards goes through [`survey`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Backend, BackendError};
use crate::program::KvFormat;

/// By which programming interface a card is driven. The order is that of preference where two reach the same card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Interface {
    Cuda,
    Hip,
    Vulkan,
    Dx12,
    Metal,
}

impl Interface {
    pub const ALL: [Interface; 5] = [Interface::Cuda, Interface::Hip, Interface::Vulkan, Interface::Dx12, Interface::Metal];

    /// First part of a card's id: `cuda` in `cuda:0`.
    pub fn id(self) -> &'static str {
        match self {
            Interface::Cuda => "cuda",
            Interface::Hip => "hip",
            Interface::Vulkan => "vulkan",
            Interface::Dx12 => "dx12",
            Interface::Metal => "metal",
        }
    }

    /// As its makers write it.
    pub fn name(self) -> &'static str {
        match self {
            Interface::Cuda => "CUDA",
            Interface::Hip => "HIP",
            Interface::Vulkan => "Vulkan",
            Interface::Dx12 => "Direct3D 12",
            Interface::Metal => "Metal",
        }
    }
}

/// Why no card can be reached by an interface: one sentence for the user, such as "there is no libcuda.so.1".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent(pub String);

/// Place of a card on the PCI bus, written `0000:01:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciPlace {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl fmt::Display for PciPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no place on the PCI bus such as 0000:01:00.0")]
pub struct NoPciPlace(String);

impl FromStr for PciPlace {
    type Err = NoPciPlace;

    /// Reads `0000:01:00.0`; drivers also write eight digits of the domain, none of it, or no function.
    fn from_str(text: &str) -> Result<PciPlace, NoPciPlace> {
        let place = || {
            let (rest, function) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
            let parts: Vec<&str> = rest.split(':').collect();
            let (domain, bus, device) = match parts[..] {
                [bus, device] => ("0", bus, device),
                [domain, bus, device] => (domain, bus, device),
                _ => return None,
            };
            Some(PciPlace {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            })
        };
        place().ok_or_else(|| NoPciPlace(text.to_owned()))
    }
}

/// How the driver manages memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverModel {
    Linux,
    /// Windows display driver model.
    Wddm,
    /// Windows without the display model (NVIDIA TCC).
    Tcc,
    Macos,
}

impl DriverModel {
    /// What drivers of this system are, unless they say otherwise.
    pub fn usual() -> DriverModel {
        if cfg!(windows) {
            DriverModel::Wddm
        } else if cfg!(target_os = "macos") {
            DriverModel::Macos
        } else {
            DriverModel::Linux
        }
    }
}

/// Limits of single buffers; `None` is none that matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CardLimits {
    pub max_buffer_bytes: Option<u64>,
    /// Largest piece of a buffer that a kernel can see.
    pub max_binding_bytes: Option<u64>,
    /// What offsets of buffers must be multiples of.
    pub alignment_bytes: Option<u32>,
}

/// Bytes that a driver takes for itself, where the finder has measured them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverBytes {
    pub context_bytes: Option<u64>,
    pub module_bytes: Option<u64>,
    pub library_bytes: Option<u64>,
    pub graph_bytes: Option<u64>,
}

/// Measured speeds of a card.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CardRates {
    /// GB/s (10^9) of reading the card's own memory.
    pub memory_gbs: Option<f64>,
    /// GB/s from pinned host memory, warm, and as a median over a longer time.
    pub bus_gbs: Option<f64>,
    pub bus_median_gbs: Option<f64>,
    /// TFLOP/s in matrix products.
    pub compute_tflops: Option<f64>,
}

/// A card as one interface sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundCard {
    pub interface: Interface,
    /// How the driver counts it; what the finder needs to open it.
    pub driver_index: u32,
    pub name: String,
    pub vendor: String,
    /// Name and version of the driver: `nvidia 580.65`, `radv 25.0.7`.
    pub driver: String,
    pub driver_model: DriverModel,
    /// As the driver writes it.
    pub uuid: Option<String>,
    pub pci: Option<PciPlace>,
    pub total_bytes: u64,
    /// What can be taken now (on Windows: the smaller of free memory and the budget).
    pub free_bytes: u64,
    /// Context, modules and library handles existed when `free_bytes` was read.
    pub opened: bool,
    /// The card's memory is the host's.
    pub integrated: bool,
    pub drives_display: bool,
    /// Played by the host's processor (llvmpipe, SwiftShader, WARP).
    pub software: bool,
    pub limits: CardLimits,
    pub driver_bytes: DriverBytes,
    pub compute_units: Option<u32>,
    /// `8.6` (CUDA), `gfx1100` (HIP).
    pub capability: Option<String>,
    /// For the report: what kernels may use (`f16`, `subgroups`, `dp4a`).
    pub features: Vec<String>,
    /// One sentence why the card cannot be used, if it cannot.
    pub unusable: Option<String>,
}

impl FoundCard {
    /// A usable card of which only the least is known; finders fill in the rest.
    pub fn new(interface: Interface, driver_index: u32, name: impl Into<String>) -> FoundCard {
        FoundCard {
            interface,
            driver_index,
            name: name.into(),
            vendor: String::new(),
            driver: String::new(),
            driver_model: DriverModel::usual(),
            uuid: None,
            pci: None,
            total_bytes: 0,
            free_bytes: 0,
            opened: false,
            integrated: false,
            drives_display: false,
            software: false,
            limits: CardLimits::default(),
            driver_bytes: DriverBytes::default(),
            compute_units: None,
            capability: None,
            features: vec![],
            unusable: None,
        }
    }

    /// Whether both interfaces speak of the same piece of hardware.
    fn is_same_hardware(&self, other: &FoundCard) -> bool {
        let same_uuid = self.uuid.as_deref().zip(other.uuid.as_deref()).is_some_and(|(a, b)| same_uuid(a, b));
        let same_place = self.pci.is_some() && self.pci == other.pci;
        !self.software && !other.software && (same_uuid || same_place)
    }
}

/// UUIDs are the same if their digits are: `GPU-6f3b...` of CUDA is `6F3B...` of Vulkan.
pub fn same_uuid(a: &str, b: &str) -> bool {
    let digits = |text: &str| -> String {
        let text = text.trim_start_matches("GPU-");
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let (a, b) = (digits(a), digits(b));
    !a.is_empty() && a == b && a.chars().any(|c| c != '0')
}

/// What a card is opened with, beside what it is.
#[derive(Debug, Clone, Default)]
pub struct CardOptions {
    /// Set it from anywhere to end the run at hand. The owner resets it.
    pub cancel: Arc<AtomicBool>,
    /// Where compiled kernels may be kept between starts.
    pub cache_folder: Option<PathBuf>,
}

/// Finds and opens the cards of one interface. Nothing here may panic, whatever the driver does.
pub trait Finder: Sync {
    fn interface(&self) -> Interface;

    /// All cards, in the driver's order. Takes no memory of cards but what asking the driver costs.
    ///
    /// # Errors
    /// The interface does not exist on this PC.
    fn find(&self) -> Result<Vec<FoundCard>, Absent>;

    /// Bytes that are free on a card now; `None` where the driver does not tell.
    fn free_bytes(&self, card: &FoundCard) -> Option<u64>;

    /// Measures a card; may take a second. What is not measured stays `None` and is assumed by the planner.
    fn measure(&self, _card: &FoundCard) -> CardRates {
        CardRates::default()
    }

    /// How its cards can cache keys and values.
    fn kv_formats(&self) -> &'static [KvFormat] {
        &[KvFormat::F32, KvFormat::F16]
    }

    /// A device without memory yet. Its facts carry the id of `card`.
    ///
    /// # Errors
    /// The driver refuses, or the card is gone.
    fn open(&self, card: &NamedCard, options: &CardOptions) -> Result<Box<dyn Backend>, BackendError>;
}

/// Whether a card takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Usable,
    /// Only if the user names it; the reason why not otherwise.
    ByName(String),
    /// Not at all, and why.
    Unusable(String),
}

/// A card with the name that users know it by, the same in every verb.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedCard {
    /// `cuda:0`: interface and number.
    pub id: String,
    pub card: FoundCard,
    pub standing: Standing,
}

/// Everything that was found, and what was not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    pub cards: Vec<NamedCard>,
    pub absent: Vec<(Interface, Absent)>,
}

impl Survey {
    /// The card that a plan speaks of: by its UUID, else by its place, else by its name. Another interface's card never.
    pub fn locate(&self, interface: Interface, uuid: Option<&str>, pci: Option<&str>, id: &str) -> Option<&NamedCard> {
        let mut own = self.cards.iter().filter(|c| c.card.interface == interface);
        if let Some(uuid) = uuid {
            return own.find(|c| c.card.uuid.as_deref().is_some_and(|other| same_uuid(uuid, other)));
        }
        if let Some(pci) = pci {
            let place = pci.parse::<PciPlace>().ok()?;
            return own.find(|c| c.card.pci == Some(place));
        }
        own.find(|c| c.id == id)
    }
}

/// Asks all finders, gives the cards their names and settles which of them take part.
pub fn survey(finders: &[&dyn Finder]) -> Survey {
    let mut survey = Survey::default();
    for finder in finders {
        match finder.find() {
            Ok(cards) => survey.cards.extend(numbered(cards)),
            Err(absent) => survey.absent.push((finder.interface(), absent)),
        }
    }
    settle_standing(&mut survey.cards);
    survey
}

/// Numbers the cards of one interface by their place on the bus, so that a number means the same card in every verb and after
/// a restart, whatever order the driver uses. Cards without a place follow, those that the processor plays come last.
fn numbered(mut cards: Vec<FoundCard>) -> Vec<NamedCard> {
    cards.sort_by_key(|c| (c.software, c.pci.is_none(), c.pci, c.driver_index));
    let named = cards.into_iter().enumerate().map(|(number, card)| NamedCard {
        id: format!("{}:{number}", card.interface.id()),
        card,
        standing: Standing::Usable,
    });
    named.collect()
}

/// A card that two interfaces reach is used by the preferred one; the processor in a card's clothes only if it is named.
fn settle_standing(cards: &mut [NamedCard]) {
    for i in 0..cards.len() {
        let own = &cards[i];
        let preferred = cards.iter().find(|other| {
            other.card.interface < own.card.interface && other.card.unusable.is_none() && other.card.is_same_hardware(&own.card)
        });
        let standing = match (&own.card.unusable, own.card.software, preferred) {
            (Some(why), ..) => Standing::Unusable(why.clone()),
            (None, true, _) => Standing::ByName("it is played by the processor".into()),
            (None, false, Some(other)) => {
                let interface = other.card.interface.name();
                Standing::ByName(format!("it is the same card as {}, and {interface} is preferred", other.id))
            }
            (None, false, None) => Standing::Usable,
        };
        cards[i].standing = standing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Interface, Result<Vec<FoundCard>, Absent>);

    impl Finder for Fake {
        fn interface(&self) -> Interface {
            self.0
        }

        fn find(&self) -> Result<Vec<FoundCard>, Absent> {
            self.1.clone()
        }

        fn free_bytes(&self, card: &FoundCard) -> Option<u64> {
            Some(card.free_bytes)
        }

        fn open(&self, card: &NamedCard, _options: &CardOptions) -> Result<Box<dyn Backend>, BackendError> {
            Err(BackendError::Rejected { device: card.id.clone(), problem: "only a fake".into() })
        }
    }

    fn card(interface: Interface, driver_index: u32, pci: Option<&str>) -> FoundCard {
        FoundCard { pci: pci.map(|p| p.parse().unwrap()), ..FoundCard::new(interface, driver_index, "a card") }
    }

    fn ids(survey: &Survey) -> Vec<(&str, u32)> {
        survey.cards.iter().map(|c| (c.id.as_str(), c.card.driver_index)).collect()
    }

    #[test]
    fn places_are_read_as_drivers_write_them() {
        for text in ["0000:0a:00.0", "00000000:0A:00.0", "0a:00.0", "0a:00"] {
            assert_eq!(text.parse::<PciPlace>().unwrap().to_string(), "0000:0a:00.0", "{text}");
        }
        for text in ["", "0a", "x:y.z", "1:2:3:4", "fff:00.0"] {
            assert!(text.parse::<PciPlace>().is_err(), "{text}");
        }
    }

    #[test]
    fn uuids_are_compared_by_their_digits() {
        assert!(same_uuid("GPU-6f3bAA00-0000-0000-0000-000000000001", "6f3baa00000000000000000000000001"));
        assert!(!same_uuid("GPU-1", "GPU-2") && !same_uuid("", "") && !same_uuid("GPU-00", "00"));
    }

    #[test]
    fn numbers_follow_the_bus_and_not_the_driver() {
        let software = FoundCard { software: true, ..card(Interface::Vulkan, 0, None) };
        let cards = vec![
            software,
            card(Interface::Vulkan, 1, None),
            card(Interface::Vulkan, 2, Some("41:00.0")),
            card(Interface::Vulkan, 3, Some("01:00.0")),
        ];
        let survey = survey(&[&Fake(Interface::Vulkan, Ok(cards))]);
        assert_eq!(ids(&survey), [("vulkan:0", 3), ("vulkan:1", 2), ("vulkan:2", 1), ("vulkan:3", 0)]);
        assert_eq!(survey.cards[3].standing, Standing::ByName("it is played by the processor".into()));
    }

    #[test]
    fn a_card_that_two_interfaces_reach_is_used_once() {
        let amd = card(Interface::Vulkan, 1, Some("02:00.0"));
        let vulkan = vec![card(Interface::Vulkan, 0, Some("01:00.0")), amd];
        let both =
            |cuda: FoundCard| survey(&[&Fake(Interface::Cuda, Ok(vec![cuda])), &Fake(Interface::Vulkan, Ok(vulkan.clone()))]);
        let found = both(card(Interface::Cuda, 0, Some("01:00.0")));
        let Standing::ByName(why) = &found.cards[1].standing else { panic!("{:?}", found.cards[1]) };
        assert!(why.contains("cuda:0") && why.contains("CUDA is preferred"), "{why}");
        assert_eq!(found.cards[2].standing, Standing::Usable);
        // If the preferred interface cannot use it, the other one does.
        let old = FoundCard { unusable: Some("the driver is too old".into()), ..card(Interface::Cuda, 0, Some("01:00.0")) };
        let found = both(old);
        assert_eq!(found.cards[0].standing, Standing::Unusable("the driver is too old".into()));
        assert_eq!(found.cards[1].standing, Standing::Usable);
    }

    #[test]
    fn absences_are_told_and_cards_are_located_by_what_does_not_change() {
        let nothing = Fake(Interface::Hip, Err(Absent("there is no libamdhip64.so".into())));
        let cards = vec![card(Interface::Cuda, 0, Some("01:00.0")), card(Interface::Cuda, 1, Some("02:00.0"))];
        let found = survey(&[&nothing, &Fake(Interface::Cuda, Ok(cards))]);
        assert_eq!(found.absent, [(Interface::Hip, Absent("there is no libamdhip64.so".into()))]);
        let at = |pci, id| found.locate(Interface::Cuda, None, pci, id).map(|c| c.id.as_str());
        assert_eq!(at(Some("0000:02:00.0"), "cuda:0"), Some("cuda:1"));
        assert_eq!(at(None, "cuda:0"), Some("cuda:0"));
        assert_eq!((at(Some("03:00.0"), "cuda:0"), at(None, "cuda:7")), (None, None));
        assert!(found.locate(Interface::Vulkan, None, None, "cuda:0").is_none());
    }
}
