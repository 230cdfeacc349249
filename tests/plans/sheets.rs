//! The shipped sheets describe the real model.

use super::support::{QUANTS, flash_next, sheet};
use strata::plan::{Mixer, PlanModel};

#[test]
fn every_sheet_has_the_tensors_and_parameters_of_the_real_model() {
    for quant in QUANTS {
        let header = sheet(quant);
        assert_eq!(header.tensors.len(), 1224, "{quant}");
        let parameters: u64 = header.tensors.iter().map(|t| t.elements().unwrap()).sum();
        assert_eq!(parameters, 176_943_899_520, "{quant}");
    }
    let draft: u64 = sheet("draft").tensors.iter().map(|t| t.elements().unwrap()).sum();
    assert_eq!((sheet("draft").tensors.len(), draft), (32, 2_607_150_848));
    let vision: u64 = sheet("vision").tensors.iter().map(|t| t.elements().unwrap()).sum();
    assert_eq!(vision, 448_931_056);
}

#[test]
fn expert_bytes_come_near_the_published_files() {
    for (quant, published_gb) in [("IQ2_XS", 35.5), ("IQ3_XXS", 42.9), ("IQ3_S", 50.295_996_416), ("Q4_K", 77.0)] {
        let model = PlanModel::from_header(&sheet(quant)).unwrap();
        let gb = model.experts_bytes() as f64 / 1e9;
        assert!((gb / published_gb - 1.0).abs() < 0.005, "{quant}: {gb:.2} GB, published {published_gb}");
        assert_eq!(model.experts_count(), 24_576);
    }
}

#[test]
fn layers_are_what_the_specification_says() {
    let model = flash_next("IQ3_S");
    assert_eq!(model.layers.len(), 48);
    let attention: Vec<usize> =
        (0..48).filter(|&l| matches!(model.layers[l].mixer, Mixer::Attention { index: Some(_), .. })).collect();
    assert_eq!(attention, (0..12).map(|i| i * 4 + 3).collect::<Vec<_>>());
    assert_eq!(model.ngram.unwrap().table.row_bytes, 90);
    assert_eq!(model.ngram.unwrap().table.bytes(), 28_800_138_240);
    assert_eq!(model.head.largest_bytes, 248_320 * 1760);
    assert!(model.layers[1].ngram_conv.is_some() && model.layers.iter().filter(|l| l.ngram_conv.is_some()).count() == 1);
    assert!(model.draft.is_some() && model.vision.is_some() && !model.tied_head);
}
