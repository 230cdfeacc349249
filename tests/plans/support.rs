//! Sheets and machine files of the repository.

use std::path::{Path, PathBuf};

use strata::plan::{Limits, Machine, ModelHeader, Plan, PlanModel, Refusal, plan, read_sheet, verify};

pub const QUANTS: [&str; 4] = ["IQ2_XS", "IQ3_XXS", "IQ3_S", "Q4_K"];

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn sheet(name: &str) -> ModelHeader {
    read_sheet(&read(&root().join(format!("assets/sheets/qwen3.8-flash-next-{name}.sheet.json")))).unwrap()
}

/// The real model with its draft block and its vision encoder.
pub fn flash_next(quant: &str) -> PlanModel {
    let model = PlanModel::from_header(&sheet(quant)).unwrap();
    model.with_companions(Some(&sheet("draft")), Some(&sheet("vision"))).unwrap()
}

pub fn machine(name: &str) -> Machine {
    Machine::from_toml(&read(&root().join(format!("tests/machines/{name}.toml")))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn machines() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("tests/machines"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    names
}

/// Plans, and has the second opinion look at the plan.
pub fn planned(model: &PlanModel, machine: &Machine, limits: &Limits) -> Result<Plan, Box<Refusal>> {
    let outcome = plan(model, machine, limits);
    if let Ok(plan) = &outcome {
        assert_eq!(verify(plan, model, machine, limits), vec![], "{} on {}", model.name, machine.name);
    }
    outcome
}

/// Plans, and expects a refusal.
pub fn refused(model: &PlanModel, machine: &Machine, limits: &Limits) -> Box<Refusal> {
    match planned(model, machine, limits) {
        Ok(plan) => panic!("{} on {} fits:\n{}", model.name, machine.name, strata::plan::render_report(&plan)),
        Err(refusal) => refusal,
    }
}
