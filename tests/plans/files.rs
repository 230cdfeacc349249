//! Model files, sheets and machine files: whichever way a model comes, the plan is the same.

use super::support::{machine, machines, root};
use strata::gguf::ModelFiles;
use strata::plan::{DiskKind, Limits, Machine, MachineError, Mixer, ModelHeader, PlanModel, decide, read_sheet, write_sheet};

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

/// Formats differ in how fast the CPU multiplies them: a rate of the format counts where it is known, and is an assumption where not.
#[test]
fn experts_that_the_cpu_computes_have_the_rate_of_their_format() {
    let model = super::support::flash_next("IQ3_S");
    let pc = machine("win-rtx5070-12g-64g");
    let limits = Limits { context: Some(16_384), prefill: Some(512), ..Limits::default() };
    let speed = |pc: &Machine| decide(&model, pc, &limits, false).unwrap().predicted.decode_tokens_per_s;
    let assumed = decide(&model, &pc, &limits, false).unwrap().assumptions;
    assert!(assumed.iter().any(|a| a.what.contains("IQ3_S, IQ4_NL, IQ4_XS, Q2_0")), "{assumed:?}");
    let with = |iq3_s: f64, other: f64| {
        let others = ["iq4_nl", "iq4_xs", "q2_0"].map(|format| format!(", {format} = {other:?}")).concat();
        let rates = format!("[host]\ncpu_format_gbs = {{ iq3_s = {iq3_s:?}{others} }}\n");
        Machine::from_toml(&pc.to_toml().unwrap().replace("[host]\n", &rates)).unwrap()
    };
    let usual = pc.host.cpu_weights_gbs.unwrap();
    assert!((speed(&with(usual, usual)) / speed(&pc) - 1.0).abs() < 1e-9);
    // Only what is faster than the bus is computed.
    let half = speed(&with(usual, usual / 2.0));
    assert!(half < speed(&pc) && speed(&with(usual / 2.0, usual / 2.0)) < half, "{half}");
    let known = decide(&model, &with(20.0, 20.0), &limits, false).unwrap().assumptions;
    assert!(known.iter().all(|a| !a.what.contains("that the CPU computes")), "{known:?}");
    let wrong = Machine::from_toml(&pc.to_toml().unwrap().replace("[host]\n", "[host]\ncpu_format_gbs = { q9_z = 3.0 }\n"));
    assert!(wrong.unwrap_err().to_string().contains("q9_z"));
}

/// A disk that nobody has measured is assumed to be what its kind usually is, and the report says so.
#[test]
fn what_is_not_known_of_a_disk_is_an_assumption() {
    let model = PlanModel::from_header(&header("tiny-flash-next-Q8_0.gguf")).unwrap();
    let limits = Limits { context: Some(512), ..Limits::default() };
    let assumed = |kind: Option<DiskKind>| {
        let mut pc = machine("laptop-8g-no-gpu-linux");
        pc.disks = vec![strata::plan::Disk { name: "disk".into(), kind, read_gbs: None, random_reads_per_s: None }];
        let plan = decide(&model, &pc, &limits, false).unwrap();
        let note = plan.assumptions.into_iter().find(|a| a.what == "disk read rate").unwrap();
        (note.value, note.why)
    };
    assert_eq!(assumed(Some(DiskKind::Hdd)).0, "0.1 GB/s");
    assert_eq!(assumed(Some(DiskKind::Nvme)).0, "3.0 GB/s");
    assert_eq!(assumed(None), assumed(Some(DiskKind::Unknown)));
    assert!(assumed(None).1.contains("not known"));
}
