//! From a card of the machine to its backend.

use std::sync::Arc;

use super::LaunchError;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::{Backend, CardUse, Faults, VirtualCard, VirtualFacts};
use crate::engine::EngineError;
use crate::plan::{BackendKind, Card, Machine};

/// A device without memory yet.
pub fn open(card: &Card, cpu: &CpuOptions, faults: &Arc<Faults>, in_use: &Arc<CardUse>) -> Result<Box<dyn Backend>, LaunchError> {
    let inner = || CpuBackend::new(cpu.clone()).map_err(|e| LaunchError::Engine(EngineError::Backend(e)));
    match card.backend {
        BackendKind::Cpu => Ok(Box::new(inner()?)),
        BackendKind::Virtual => {
            let largest = [card.max_buffer, card.max_binding].into_iter().flatten().map(|size| size.0).min();
            let facts = VirtualFacts {
                id: card.id.clone(),
                name: card.name.clone(),
                limit_bytes: card.free.0,
                max_piece_bytes: largest.unwrap_or(u64::MAX),
                faults: Arc::clone(faults),
                in_use: Arc::clone(in_use),
            };
            Ok(Box::new(VirtualCard::new(inner()?, facts)))
        }
        backend => Err(LaunchError::NoBackend { card: card.id.clone(), backend }),
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
