//! Reports and refusals of every machine with every sheet, as files under `tests/snapshots/plan`.
//! After a wanted change: `STRATA_BLESS=1 cargo test --test plans snapshots`, then read the difference.

use super::support::{QUANTS, flash_next, machine, machines, planned, root};
use strata::plan::{KvType, Limits, render_report};

/// What a careful user asks for: 64K context, int8, drafts.
fn usual() -> Limits {
    Limits { context: Some(65_536), kv: KvType::Int8, draft: true, ..Limits::default() }
}

#[test]
fn every_machine_with_every_sheet() {
    let bless = std::env::var_os("STRATA_BLESS").is_some();
    let folder = root().join("tests/snapshots/plan");
    let mut wrong = Vec::new();
    for quant in QUANTS {
        let model = flash_next(quant);
        for name in machines() {
            let text = match planned(&model, &machine(&name), &usual()) {
                Ok(plan) => render_report(&plan),
                Err(refusal) => refusal.to_string(),
            };
            let path = folder.join(format!("{name}.{quant}.txt"));
            if bless {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            } else if std::fs::read_to_string(&path).unwrap_or_default().replace('\r', "") != text {
                wrong.push(path);
            }
        }
    }
    assert!(wrong.is_empty(), "these snapshots are not as before: {wrong:#?}");
}
