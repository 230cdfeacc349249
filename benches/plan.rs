//! The search: four different cards x 48 layers must stay under 50 ms.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use strata::plan::{KvType, Limits, Machine, PlanModel, decide, plan, read_sheet};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn planning(c: &mut Criterion) {
    let header = read_sheet(&read("assets/sheets/qwen3.8-flash-next-IQ3_S.sheet.json")).unwrap();
    let model = PlanModel::from_header(&header).unwrap();
    c.bench_function("read a sheet and build its layers", |b| b.iter(|| PlanModel::from_header(black_box(&header)).is_ok()));
    let limits = Limits { context: Some(65_536), kv: KvType::Int8, ..Limits::default() };
    for name in ["linux-4-mixed-128g", "linux-4x3090-24g-256g", "win-rtx5070-12g-64g"] {
        let machine = Machine::from_toml(&read(&format!("tests/machines/{name}.toml"))).unwrap();
        c.bench_function(&format!("plan {name}"), |b| b.iter(|| decide(black_box(&model), &machine, &limits, true).is_ok()));
    }
    let small = Machine::from_toml(&read("tests/machines/laptop-rtx4060-8g-16g-windows.toml")).unwrap();
    c.bench_function("refuse with remedies", |b| b.iter(|| plan(black_box(&model), &small, &limits).is_err()));
}

criterion_group! { name = benches; config = Criterion::default().sample_size(10); targets = planning }
criterion_main!(benches);
