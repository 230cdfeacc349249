//! Model files, sheets and machine files: whichever way a model comes, the plan is the same.

use super::support::{machine, machines, root};
use strata::gguf::ModelFiles;
use strata::plan::{Limits, Machine, MachineError, Mixer, ModelHeader, PlanModel, decide, read_sheet, write_sheet};

fn header(name: &str) -> ModelHeader {
    ModelHeader::from(&ModelFiles::open(root().join("tests/fixtures").join(name)).unwrap())
}

#[test]
fn a_sheet_of_a_file_plans_like_the_file() {
    for name in ["tiny-flash-next-Q8_0.gguf", "tiny-flash-next-IQ2_XS-00001-of-00002.gguf", "tiny-random-BF16.gguf"] {
        let header = header(name);
        let sheet = read_sheet(&write_sheet(&header).unwrap()).unwrap();
        assert_eq!(sheet, header, "{name}");
        let (a, b) = (PlanModel::from_header(&header).unwrap(), PlanModel::from_header(&sheet).unwrap());
        assert_eq!(a, b);
        let pc = machine("laptop-8g-no-gpu-linux");
        let limits = Limits { context: Some(512), ..Limits::default() };
        assert_eq!(decide(&a, &pc, &limits, true), decide(&b, &pc, &limits, true));
    }
}

#[test]
fn the_tiny_model_has_its_layers_and_its_draft_block() {
    let mut model = PlanModel::from_header(&header("tiny-flash-next-Q8_0.gguf")).unwrap();
    let attention = |m: &PlanModel| {
        (0..8).filter(|&l| matches!(m.layers[l].mixer, Mixer::Attention { index: Some(_), .. })).collect::<Vec<_>>()
    };
    assert_eq!((model.layers.len(), attention(&model)), (8, vec![3, 7]));
    assert_eq!(model.experts_count(), 64);
    model.add_draft(&header("tiny-flash-next-MTP-Q5_0.gguf")).unwrap();
    assert!(model.draft.as_ref().unwrap().block.experts.is_some());
    let limits = Limits { context: Some(512), draft: true, ..Limits::default() };
    let plan = decide(&model, &machine("laptop-8g-no-gpu-linux"), &limits, true).unwrap();
    assert!(plan.row("cpu/draft-kv").is_some());
}

#[test]
fn machine_files_are_read_written_and_checked() {
    assert!(machines().len() >= 12);
    for name in machines() {
        let pc = machine(&name);
        assert_eq!(Machine::from_toml(&pc.to_toml().unwrap()).unwrap(), pc, "{name}");
    }
    let text = machine("win-rtx5070-12g-64g").to_toml().unwrap();
    let wrong = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Machine::from_toml(&text.replace(from, to)).unwrap_err()
    };
    assert!(wrong("cores = 6", "kores = 6").to_string().contains("kores"));
    assert!(matches!(wrong("version = 1", "version = 9"), MachineError::Version { found: 9 }));
    assert!(wrong("cores = 6", "cores = 0").to_string().contains("cores"));
    assert!(wrong("memory_gbs = 672.0", "memory_gbs = -1.0").to_string().contains("cuda:0"));
    assert!(wrong("\"wddm\"", "\"wdm\"").to_string().contains("wdm"));
    let page_file = text.lines().find(|l| l.starts_with("commit_used")).unwrap();
    assert!(wrong(page_file, "").to_string().contains("commit"));
}

#[test]
fn broken_models_are_errors_and_never_panics() {
    let good = header("tiny-flash-next-Q8_0.gguf");
    let keys: Vec<String> = good.metadata.keys().filter(|k| k.starts_with("qwen4exp.")).cloned().collect();
    for key in keys {
        for value in [
            strata::plan::MetaValue::Unsigned(u64::from(u32::MAX)),
            strata::plan::MetaValue::Unsigned(0),
            strata::plan::MetaValue::Signed(-5),
            strata::plan::MetaValue::Text("x".into()),
            strata::plan::MetaValue::List(vec![]),
        ] {
            let mut broken = good.clone();
            broken.metadata.insert(key.clone(), value);
            if let Ok(model) = PlanModel::from_header(&broken) {
                let _ = decide(&model, &machine("laptop-8g-no-gpu-linux"), &Limits::default(), false);
            }
        }
    }
    for i in 0..good.tensors.len() {
        for shape in [vec![], vec![0], vec![u64::MAX, u64::MAX], vec![33, 1 << 40], vec![256, 1 << 60, 1 << 60]] {
            let mut broken = good.clone();
            broken.tensors[i].shape = shape;
            let _ = PlanModel::from_header(&broken);
        }
    }
    assert!(PlanModel::from_header(&ModelHeader::default()).is_err());
}
