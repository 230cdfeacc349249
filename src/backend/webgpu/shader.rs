//! Composes the WGSL source of a kernel: generated declarations, constants of the variant, and the files in `shaders/` with
//! their `#include "..."` lines resolved, each file once.

use std::fmt::Write;

use crate::backend::gpu::args::MAX_ARG_WORDS;
use crate::backend::gpu::source::{wgsl_bindings, wgsl_constants};
use crate::backend::gpu::{Kernel, Variant};
use crate::program::KvFormat;
use crate::quant::fp4::E2M1_DOUBLED;
use crate::quant::iq_grids::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_VALUES};

/// The binding of the codebooks, after the arguments and the operands.
pub const TABLES_BINDING: u32 = 8;

/// Largest head of attention and key of the delta rule that the kernels have room for.
pub const MAX_HEAD_DIM: u32 = 512;
pub const MAX_KEY_DIM: u32 = 512;
/// How keys and values can be cached.
pub const CACHES: &[KvFormat] = &[KvFormat::F32, KvFormat::F16];
/// Most experts that the router and the sorting of choices have room for.
pub const MAX_EXPERTS: u32 = 2048;

/// Numbers that a device's kernels are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Threads of a workgroup of the matrix kernels, and how many of them share an output of a matrix–vector product.
    pub threads: u32,
    pub lanes: u32,
    /// Window rows of a workgroup of the tiled matrix kernels.
    pub matrix_rows: u32,
    /// Threads, and so value channels, of a workgroup of the delta rule.
    pub delta_threads: u32,
}

macro_rules! files {
    ($($path:literal)*) => {
        /// Every file of `shaders/`, by its path there.
        pub const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../../../shaders/", $path)))),*];
    };
}

files! {
    "common/bytes.wgsl" "common/cache.wgsl" "common/experts.wgsl" "common/functions.wgsl" "common/grids.wgsl"
    "common/products.wgsl" "common/rotate.wgsl" "common/rows.wgsl" "common/sum.wgsl" "common/work.wgsl"
    "formats/bf16.wgsl" "formats/f16.wgsl" "formats/f32.wgsl" "formats/iq1_m.wgsl" "formats/iq1_s.wgsl" "formats/iq2_s.wgsl"
    "formats/iq2_xs.wgsl" "formats/iq2_xxs.wgsl" "formats/iq3_s.wgsl" "formats/iq3_xxs.wgsl" "formats/iq4_nl.wgsl"
    "formats/iq4_xs.wgsl" "formats/mxfp4.wgsl" "formats/nvfp4.wgsl" "formats/q2_0.wgsl" "formats/q2_k.wgsl"
    "formats/q3_k.wgsl" "formats/q4_0.wgsl" "formats/q4_1.wgsl" "formats/q4_k.wgsl" "formats/q5_0.wgsl" "formats/q5_1.wgsl"
    "formats/q5_k.wgsl" "formats/q6_k.wgsl" "formats/q8_0.wgsl" "formats/tq1_0.wgsl" "formats/tq2_0.wgsl"
    "kernels/add.wgsl" "kernels/attention.wgsl" "kernels/attention_merge.wgsl" "kernels/block_select.wgsl"
    "kernels/causal_conv.wgsl" "kernels/delta_finish.wgsl" "kernels/delta_rule.wgsl" "kernels/expert_group.wgsl"
    "kernels/expert_mul.wgsl" "kernels/expert_sum.wgsl" "kernels/expert_vec.wgsl" "kernels/gather.wgsl"
    "kernels/hc_combine.wgsl" "kernels/hc_gate.wgsl" "kernels/head_norm_rope.wgsl" "kernels/index_append.wgsl"
    "kernels/index_scores.wgsl" "kernels/kv_append.wgsl" "kernels/mat_vec.wgsl" "kernels/ngram_gate.wgsl"
    "kernels/repeat.wgsl" "kernels/rms_norm.wgsl" "kernels/router.wgsl"
}

fn file(path: &str) -> Result<&'static str, String> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text).ok_or_else(|| format!("there is no shader '{path}'"))
}

/// The source of a kernel.
///
/// # Errors
/// A file that does not exist: a mistake in `shaders/`.
pub fn compose(variant: &Variant, tuning: &Tuning) -> Result<String, String> {
    let info = variant.kernel.info();
    let mut text = wgsl_constants() + &wgsl_bindings(info) + &constants(variant, tuning);
    let name = match variant.kernel {
        Kernel::MatMul => "mat_vec",
        _ => info.name,
    };
    let mut included = vec![];
    include(&mut text, &format!("kernels/{name}.wgsl"), variant, &mut included)?;
    Ok(text)
}

fn include(text: &mut String, path: &str, variant: &Variant, included: &mut Vec<String>) -> Result<(), String> {
    if included.iter().any(|p| p == path) {
        return Ok(());
    }
    included.push(path.to_string());
    for line in file(path)?.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some("format") => {
                let format = variant.format.ok_or_else(|| format!("'{path}' needs a block format"))?;
                include(text, "common/bytes.wgsl", variant, included)?;
                include(text, &format!("formats/{}.wgsl", format.name().to_lowercase()), variant, included)?;
            }
            Some(other) => include(text, other, variant, included)?,
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Ok(())
}

/// Threads of a workgroup.
fn threads(kernel: Kernel, tuning: &Tuning) -> u32 {
    match kernel {
        Kernel::MatVec | Kernel::MatMul | Kernel::ExpertVec | Kernel::ExpertMul => tuning.threads,
        Kernel::DeltaRule => tuning.delta_threads,
        Kernel::Attention | Kernel::AttentionMerge | Kernel::CausalConv | Kernel::IndexScores => 64,
        Kernel::RmsNorm | Kernel::HeadNormRope | Kernel::DeltaFinish | Kernel::Router => 64,
        Kernel::IndexAppend | Kernel::NgramGate => 64,
        _ => 256,
    }
}

fn constants(variant: &Variant, tuning: &Tuning) -> String {
    let batch = match variant.kernel {
        Kernel::MatMul | Kernel::ExpertMul => tuning.matrix_rows,
        _ => variant.batch.max(1),
    };
    let lanes = match variant.kernel {
        Kernel::MatVec | Kernel::ExpertVec => tuning.lanes,
        _ => 1,
    };
    let numbers = [
        ("THREADS", threads(variant.kernel, tuning)),
        ("BATCH", batch),
        ("LANES", lanes),
        ("LANE_SLOTS", if variant.gated { 2 } else { 1 }),
        ("MAX_HEAD_DIM", MAX_HEAD_DIM),
        ("MAX_KEY_DIM", MAX_KEY_DIM),
        ("MAX_EXPERTS", MAX_EXPERTS),
        ("TABLES_BINDING", TABLES_BINDING),
    ];
    let mut text = String::new();
    for (name, value) in numbers.into_iter().chain(TABLE_PLACES) {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    let _ = writeln!(text, "const GATED: bool = {};", variant.gated);
    let _ = writeln!(text, "const CACHE_F16: bool = {};", variant.cache == Some(KvFormat::F16));
    text
}

const fn after(at: u32, entries: usize, words: u32) -> u32 {
    at + entries as u32 * words
}

const IQ2XXS_AT: u32 = 0;
const IQ2XS_AT: u32 = after(IQ2XXS_AT, IQ2XXS_GRID.len(), 2);
const IQ2S_AT: u32 = after(IQ2XS_AT, IQ2XS_GRID.len(), 2);
const IQ1S_AT: u32 = after(IQ2S_AT, IQ2S_GRID.len(), 2);
const IQ3XXS_AT: u32 = after(IQ1S_AT, IQ1S_GRID.len(), 2);
const IQ3S_AT: u32 = after(IQ3XXS_AT, IQ3XXS_GRID.len(), 1);
const IQ4_AT: u32 = after(IQ3S_AT, IQ3S_GRID.len(), 1);
const E2M1_AT: u32 = after(IQ4_AT, IQ4_VALUES.len(), 1);

/// Where each codebook begins among the words of [`tables`].
const TABLE_PLACES: [(&str, u32); 8] = [
    ("IQ2XXS_AT", IQ2XXS_AT),
    ("IQ2XS_AT", IQ2XS_AT),
    ("IQ2S_AT", IQ2S_AT),
    ("IQ1S_AT", IQ1S_AT),
    ("IQ3XXS_AT", IQ3XXS_AT),
    ("IQ3S_AT", IQ3S_AT),
    ("IQ4_AT", IQ4_AT),
    ("E2M1_AT", E2M1_AT),
];

/// All codebooks as words: grids as they are, tables of sixteen as floats.
pub fn tables() -> Vec<u32> {
    let mut words: Vec<u32> = vec![];
    for grid in [&IQ2XXS_GRID[..], &IQ2XS_GRID[..], &IQ2S_GRID[..], &IQ1S_GRID[..]] {
        words.extend(grid.iter().flat_map(|entry| [*entry as u32, (*entry >> 32) as u32]));
    }
    words.extend(IQ3XXS_GRID.iter().chain(&IQ3S_GRID));
    words.extend(IQ4_VALUES.iter().chain(&E2M1_DOUBLED).map(|value| f32::from(*value).to_bits()));
    words
}

/// Whether a kernel's source binds the codebooks.
pub fn uses_tables(source: &str) -> bool {
    source.contains("var<storage, read> tables")
}

/// A kernel's arguments fit a binding of this many bytes.
pub const ARGS_BYTES: u64 = MAX_ARG_WORDS as u64 * 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::KERNELS;
    use crate::backend::gpu::kernels::{BATCHES, Kinds};
    use crate::quant::{FORMATS, Format};

    /// Every variant that lowering can ask for. Activations stay float32 here, so none are rounded; the delta rule works token by
    /// token.
    fn variants() -> Vec<Variant> {
        let mut all = vec![];
        let used = |kernel| !matches!(kernel, Kernel::Quantise | Kernel::DeltaChunks);
        for info in KERNELS.iter().filter(|info| used(info.kernel)) {
            let kernel = info.kernel;
            if info.kinds == Kinds::PerCache {
                let one = Variant { kernel, format: None, cache: None, gated: false, batch: 0 };
                all.extend(CACHES.iter().map(|cache| Variant { cache: Some(*cache), ..one }));
                continue;
            }
            let formats: Vec<Option<Format>> = match info.kinds {
                Kinds::One | Kinds::PerCache => vec![None],
                Kinds::PerFormat | Kinds::PerFormatAndBatch => FORMATS.iter().map(|f| Some(f.format)).collect(),
            };
            let batches: &[u32] = if info.kinds == Kinds::PerFormatAndBatch { &BATCHES } else { &[0] };
            for format in formats {
                for gated in [false, true].into_iter().take(1 + usize::from(info.gated)) {
                    all.extend(batches.iter().map(|batch| Variant { kernel, format, cache: None, gated, batch: *batch }));
                }
            }
        }
        all
    }

    #[test]
    fn every_kernel_is_valid_for_lanes_of_one_and_of_many() {
        for lanes in [1, 8, 32] {
            let tuning = Tuning { threads: 64, lanes, matrix_rows: 16, delta_threads: 32 };
            for variant in variants() {
                let source = compose(&variant, &tuning).unwrap();
                let module = naga::front::wgsl::parse_str(&source)
                    .unwrap_or_else(|e| panic!("{}: {}", variant.name(), e.emit_to_string(&source)));
                let mut validator = naga::valid::Validator::new(
                    naga::valid::ValidationFlags::all(),
                    naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
                );
                validator.validate(&module).unwrap_or_else(|e| panic!("{}: {}", variant.name(), e.emit_to_string(&source)));
            }
        }
    }

    #[test]
    fn every_file_is_part_of_some_kernel_and_listed() {
        let tuning = Tuning { threads: 64, lanes: 8, matrix_rows: 16, delta_threads: 32 };
        let sources: Vec<String> = variants().iter().map(|v| compose(v, &tuning).unwrap()).collect();
        for (path, text) in FILES {
            let line = text.lines().find(|l| l.starts_with("fn ") || l.starts_with("@compute")).unwrap();
            assert!(sources.iter().any(|s| s.contains(line)), "{path} is used by no kernel");
        }
    }

    #[test]
    fn codebooks_lie_where_the_kernels_look() {
        let words = tables();
        assert_eq!(words.len() as u32, E2M1_AT + 16);
        assert_eq!(words[IQ2S_AT as usize + 2 * 77 + 1], (IQ2S_GRID[77] >> 32) as u32);
        assert_eq!(words[IQ3S_AT as usize + 300], IQ3S_GRID[300]);
        assert_eq!(f32::from_bits(words[IQ4_AT as usize + 1]), -104.0);
        assert_eq!(f32::from_bits(words[E2M1_AT as usize + 15]), -12.0);
    }
}
