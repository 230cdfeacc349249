//! Probing this very machine gives a machine that can be saved, read again and planned for.

use strata::plan::{BackendKind, Machine};
use strata::probe::{Effort, probe};

#[test]
fn this_pc_can_be_probed_saved_and_read_again() {
    let machine = probe(Effort::Read);
    machine.check().unwrap();
    assert!(strata::plan::render_devices(&machine).contains("cpu: CPU"));
    assert_eq!(machine.cards.len(), 1);
    assert_eq!(machine.cards[0].backend, BackendKind::Cpu);
    assert_eq!(Machine::from_toml(&machine.to_toml().unwrap()).unwrap(), machine);
    if cfg!(target_os = "linux") {
        assert!(machine.host.ram_total.0 > 0 && machine.host.ram_available.0 > 0);
    }
}
