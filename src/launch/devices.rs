//! From a card of the machine to its backend, and the drivers' word on free memory.

use std::sync::Arc;
use std::time::Duration;

use super::{CardReader, LaunchError};
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::discovery::{CardOptions, NamedCard, Survey, survey};
use crate::backend::{Backend, CardUse, Faults, Finder, VirtualCard, VirtualFacts};
use crate::engine::EngineError;
use crate::plan::{BackendKind, Card, Machine};
use crate::probe::{cache_folder, interface_of};
use crate::program::KvFormat;

type Opened = Result<Box<dyn Backend>, LaunchError>;
type Open = fn(&Opener<'_>, &Card) -> Opened;

/// How cards of each kind are opened.
const OPENERS: &[(BackendKind, Open)] = &[
    (BackendKind::Cpu, |opener, card| opener.cpu(card)),
    (BackendKind::Virtual, |opener, card| opener.virtual_card(card)),
    (BackendKind::Cuda, |opener, card| opener.found(card)),
    (BackendKind::Hip, |opener, card| opener.found(card)),
    (BackendKind::Vulkan, |opener, card| opener.found(card)),
    (BackendKind::Dx12, |opener, card| opener.found(card)),
    (BackendKind::Metal, |opener, card| opener.found(card)),
];

/// What opening needs beside the card.
pub struct Opener<'a> {
    pub cpu: &'a CpuOptions,
    pub faults: &'a Arc<Faults>,
    pub in_use: &'a Arc<CardUse>,
    pub drivers: &'a Drivers,
}

impl Opener<'_> {
    /// A device without memory yet.
    pub fn open(&self, card: &Card) -> Opened {
        let opener = OPENERS.iter().find(|(kind, _)| *kind == card.backend);
        opener.map_or_else(|| Err(no_backend(card)), |(_, open)| open(self, card))
    }

    fn processor(&self) -> Result<CpuBackend, LaunchError> {
        CpuBackend::new(self.cpu.clone()).map_err(|e| LaunchError::Engine(EngineError::Backend(e)))
    }

    fn cpu(&self, _card: &Card) -> Opened {
        Ok(Box::new(self.processor()?))
    }

    fn virtual_card(&self, card: &Card) -> Opened {
        let largest = [card.max_buffer, card.max_binding].into_iter().flatten().map(|size| size.0).min();
        let facts = VirtualFacts {
            id: card.id.clone(),
            name: card.name.clone(),
            limit_bytes: card.free.0,
            max_piece_bytes: largest.unwrap_or(u64::MAX),
            faults: Arc::clone(self.faults),
            in_use: Arc::clone(self.in_use),
        };
        Ok(Box::new(VirtualCard::new(self.processor()?, facts)))
    }

    /// A card of this PC: the one that the plan means, under the plan's name.
    fn found(&self, card: &Card) -> Opened {
        let finder = self.drivers.finder(card.backend).ok_or_else(|| no_backend(card))?;
        let found = self.drivers.locate(card).ok_or_else(|| LaunchError::NoSuchCard { card: card.id.clone() })?;
        let named = NamedCard { id: card.id.clone(), ..found.clone() };
        let options = CardOptions { cancel: Arc::clone(&self.cpu.cancel), cache_folder: cache_folder() };
        finder.open(&named, &options).map_err(|e| LaunchError::Engine(EngineError::Backend(e)))
    }
}

fn no_backend(card: &Card) -> LaunchError {
    LaunchError::NoBackend { card: card.id.clone(), backend: card.backend }
}

/// The drivers of this PC and the cards they have, asked once a launch.
pub struct Drivers {
    finders: &'static [&'static dyn Finder],
    survey: Survey,
}

impl Drivers {
    /// Asks only the drivers that the machine has cards of.
    pub fn of(machine: &Machine, finders: &'static [&'static dyn Finder]) -> Drivers {
        let needed =
            |finder: &&dyn Finder| machine.cards.iter().any(|card| interface_of(card.backend) == Some(finder.interface()));
        let asked: Vec<&dyn Finder> = finders.iter().copied().filter(needed).collect();
        Drivers { finders, survey: survey(&asked) }
    }

    /// Whether this version can drive cards of the kind at all.
    pub fn can_drive(&self, kind: BackendKind) -> bool {
        interface_of(kind).is_none() || self.finder(kind).is_some()
    }

    /// Whether cards of the kind can cache keys and values so. The CPU, and cards that it plays, can do all.
    pub fn can_cache(&self, kind: BackendKind, format: KvFormat) -> bool {
        interface_of(kind).is_none() || self.finder(kind).is_some_and(|finder| finder.kv_formats().contains(&format))
    }

    fn finder(&self, kind: BackendKind) -> Option<&'static dyn Finder> {
        let interface = interface_of(kind)?;
        self.finders.iter().copied().find(|finder| finder.interface() == interface)
    }

    fn locate(&self, card: &Card) -> Option<&NamedCard> {
        self.survey.locate(interface_of(card.backend)?, card.uuid.as_deref(), card.pci.as_deref(), &card.id)
    }
}

impl CardReader for Drivers {
    fn free_bytes(&mut self, card: &Card) -> Option<u64> {
        let finder = self.finder(card.backend)?;
        finder.free_bytes(&self.locate(card)?.card)
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A machine file may describe another PC. Run here, it has no more RAM than this one gives.
pub fn within_this_pc(mut machine: Machine, here: &Machine) -> Machine {
    let host = &mut machine.host;
    if here.host.ram_total.0 > 0 {
        host.ram_available = host.ram_available.min(here.host.ram_available);
        if host.container_limit.is_none() {
            host.container_limit = here.host.container_limit;
            host.container_used = here.host.container_used;
        }
    }
    machine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Size;

    #[test]
    fn a_machine_file_cannot_promise_memory_that_is_not_there() {
        let file = Machine::from_toml(include_str!("../../tests/machines/linux-4-virtual-cards.toml")).unwrap();
        let mut here = file.clone();
        here.host.ram_available = Size(3 << 30);
        here.host.container_limit = Some(Size(4 << 30));
        here.host.container_used = Some(Size(1 << 30));
        let capped = within_this_pc(file.clone(), &here);
        assert_eq!((capped.host.ram_available, capped.host.container_limit), (Size(3 << 30), Some(Size(4 << 30))));
        assert_eq!(capped.cards, file.cards);
        // Where nothing is known of this PC, and where the file is the smaller one, the file counts.
        here.host.ram_total = Size(0);
        assert_eq!(within_this_pc(file.clone(), &here), file);
        let mut small = file.clone();
        small.host.ram_available = Size(1 << 30);
        assert_eq!(within_this_pc(small, &file).host.ram_available, Size(1 << 30));
    }
}
