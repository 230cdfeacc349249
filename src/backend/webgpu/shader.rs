//! Composes the WGSL source of a kernel: generated declarations, constants of the variant, and the files in `shaders/` with
//! their `#include "..."` lines resolved, each file once.

use std::fmt::Write;

use super::tuning::{Sharing, Tile, Tuning};
use crate::backend::gpu::args::MAX_ARG_WORDS;
use crate::backend::gpu::source::{wgsl_bindings, wgsl_constants};
use crate::backend::gpu::{Kernel, Operand, Variant};
use crate::program::KvFormat;
use crate::quant::Format;
use crate::quant::fp4::E2M1_DOUBLED;
use crate::quant::iq_grids::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_VALUES};

/// The binding of the codebooks, after the arguments and the operands.
pub const TABLES_BINDING: u32 = 8;

/// Largest head of attention and key of the delta rule that the kernels have room for.
pub const MAX_HEAD_DIM: u32 = 512;
pub const MAX_KEY_DIM: u32 = 512;
/// How keys and values can be cached.
pub const CACHES: &[KvFormat] = &KvFormat::ALL;
/// Rows of a chunk of the delta rule, and largest key that chunks have room for.
const CHUNK_ROWS: u32 = 16;
pub const MAX_CHUNK_KEYS: u32 = 128;
/// Most experts that the router and the sorting of choices have room for.
pub const MAX_EXPERTS: u32 = 2048;

macro_rules! files {
    ($($path:literal)*) => {
        /// Every file of `shaders/`, by its path there.
        pub const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../../../shaders/", $path)))),*];
    };
}

files! {
    "common/broadcast.wgsl" "common/bytes.wgsl" "common/cache_blocks.wgsl" "common/cache_floats.wgsl" "common/chunk_broadcast.wgsl"
    "common/chunk_memory.wgsl" "common/codes.wgsl" "common/codes16.wgsl"
    "common/decode32.wgsl" "common/decoded.wgsl" "common/each_own.wgsl" "common/experts.wgsl" "common/functions.wgsl" "common/grids.wgsl"
    "common/halves.wgsl" "common/halves_coded.wgsl" "common/halves_own.wgsl" "common/lanes.wgsl" "common/lanes_memory.wgsl"
    "common/lanes_subgroup.wgsl" "common/products.wgsl" "common/read_blocks.wgsl" "common/read_floats.wgsl" "common/rotate.wgsl" "common/rounded.wgsl" "common/rows.wgsl" "common/sixteen.wgsl"
    "common/sum_memory.wgsl" "common/sum_subgroup.wgsl" "common/tile.wgsl" "common/tile_bytes.wgsl" "common/tile_cooperative_float.wgsl"
    "common/tile_cooperative_half.wgsl" "common/tile_float.wgsl" "common/tile_floats.wgsl" "common/tile_half.wgsl" "common/tile_rounded.wgsl"
    "common/tile_scales.wgsl" "common/work.wgsl"
    "formats/bf16.wgsl" "formats/f16.wgsl" "formats/f32.wgsl" "formats/iq1_m.wgsl" "formats/iq1_s.wgsl" "formats/iq2_s.wgsl"
    "formats/iq2_xs.wgsl" "formats/iq2_xxs.wgsl" "formats/iq3_s.wgsl" "formats/iq3_xxs.wgsl" "formats/iq4_nl.wgsl"
    "formats/iq4_xs.wgsl" "formats/mxfp4.wgsl" "formats/nvfp4.wgsl" "formats/q2_0.wgsl" "formats/q2_k.wgsl"
    "formats/q3_k.wgsl" "formats/q4_0.wgsl" "formats/q4_1.wgsl" "formats/q4_k.wgsl" "formats/q5_0.wgsl" "formats/q5_1.wgsl"
    "formats/q5_k.wgsl" "formats/q6_k.wgsl" "formats/q8_0.wgsl" "formats/tq1_0.wgsl" "formats/tq2_0.wgsl"
    "kernels/add.wgsl" "kernels/attention.wgsl" "kernels/attention_merge.wgsl" "kernels/block_select.wgsl"
    "kernels/causal_conv.wgsl" "kernels/delta_chunks.wgsl" "kernels/delta_finish.wgsl" "kernels/delta_rule.wgsl" "kernels/expert_group.wgsl"
    "kernels/expert_mul.wgsl" "kernels/expert_sum.wgsl" "kernels/expert_vec.wgsl" "kernels/gather.wgsl"
    "kernels/hc_combine.wgsl" "kernels/hc_gate.wgsl" "kernels/head_norm_rope.wgsl" "kernels/index_append.wgsl"
    "kernels/index_scores.wgsl" "kernels/kv_append.wgsl" "kernels/kv_append_blocks.wgsl" "kernels/mat_vec.wgsl" "kernels/ngram_gate.wgsl"
    "kernels/quantise.wgsl" "kernels/repeat.wgsl" "kernels/rms_norm.wgsl" "kernels/router.wgsl"
}

fn file(path: &str) -> Result<&'static str, String> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text).ok_or_else(|| format!("there is no shader '{path}'"))
}

/// The source of a kernel; of products, for so many parts in a launch.
///
/// # Errors
/// A file that does not exist, or a directive that cannot be resolved: a mistake in `shaders/`.
pub fn compose(variant: &Variant, tuning: &Tuning, parts: u32) -> Result<String, String> {
    let info = variant.kernel.info();
    let numbers = numbers(variant, tuning, parts);
    let args_space = if tuning.args_in_storage { "storage, read" } else { "uniform" };
    let (name, atomic) = match variant.kernel {
        Kernel::MatMul => ("mat_vec", None),
        // Blocks of two cells may share a word.
        Kernel::KvAppend if has_blocks(variant) => ("kv_append_blocks", Some(Operand::State)),
        _ => (info.name, None),
    };
    let bindings = wgsl_bindings(info, args_space, atomic, has_parts(variant.kernel).then_some(parts));
    let text = extensions(variant, tuning) + &wgsl_constants() + &bindings + &constants(variant, &numbers);
    let mut sources = Sources { variant, tuning, text, included: vec![] };
    sources.include(&format!("kernels/{name}.wgsl"))?;
    let lines: Vec<&str> = sources.text.lines().collect();
    let mut text = String::with_capacity(sources.text.len());
    repeat(&lines, &numbers, &mut text)?;
    Ok(text)
}

/// Whether launches of a kernel have parts.
pub fn has_parts(kernel: Kernel) -> bool {
    matches!(kernel, Kernel::MatVec | Kernel::MatMul)
}

/// A kernel's source in the making.
struct Sources<'a> {
    variant: &'a Variant,
    tuning: &'a Tuning,
    text: String,
    included: Vec<String>,
}

impl Sources<'_> {
    /// Adds a file, once, with what it includes. Some names stand for files that the variant decides.
    fn include(&mut self, path: &str) -> Result<(), String> {
        match path {
            "format" => return self.include_format(),
            "sharing" => return self.include(self.sharing()),
            "halves" if self.variant.format == Some(Format::F16) => return self.include("common/halves_own.wgsl"),
            "halves" => return self.include("common/halves_coded.wgsl"),
            "cache" if has_blocks(self.variant) => return self.include("common/read_blocks.wgsl"),
            "cache" => return self.include("common/read_floats.wgsl"),
            "chunk" if self.tuning.sharing == Sharing::Broadcast => return self.include("common/chunk_broadcast.wgsl"),
            "chunk" => return self.include("common/chunk_memory.wgsl"),
            "sum" if self.tuning.subgroup > 0 => return self.include("common/sum_subgroup.wgsl"),
            "sum" => return self.include("common/sum_memory.wgsl"),
            _ => {}
        }
        if self.included.iter().any(|p| p == path) {
            return Ok(());
        }
        self.included.push(path.to_string());
        for line in file(path)?.lines() {
            match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
                Some(other) => self.include(other)?,
                None => {
                    self.text.push_str(line);
                    self.text.push('\n');
                }
            }
        }
        Ok(())
    }

    fn include_format(&mut self) -> Result<(), String> {
        let format = self.variant.format.ok_or("a kernel needs a block format")?;
        let path = format!("formats/{}.wgsl", format.name().to_lowercase());
        self.include("common/bytes.wgsl")?;
        self.include(&path)?;
        let has = |function| file(&path).map(|text| text.contains(function));
        if !has("fn decode16(")? {
            self.include("common/decoded.wgsl")?;
        }
        if has("fn decode32(")? { Ok(()) } else { self.include("common/decode32.wgsl") }
    }

    /// How the threads of a product work together.
    fn sharing(&self) -> &'static str {
        let is_vector = matches!(self.variant.kernel, Kernel::MatVec | Kernel::ExpertVec);
        match self.tuning.sharing {
            _ if !is_vector && tile(self.variant, self.tuning) != Tile::None => tile_file(tile(self.variant, self.tuning)),
            Sharing::Broadcast => "common/broadcast.wgsl",
            Sharing::Subgroup if is_vector => "common/lanes_subgroup.wgsl",
            Sharing::Subgroup | Sharing::Memory => "common/lanes_memory.wgsl",
        }
    }
}

/// The tile of a matrix kernel: that of the device where weights of the format can lie in it.
fn tile(variant: &Variant, tuning: &Tuning) -> Tile {
    let coded = variant.format.is_some_and(|format| format.info().block_len > 1);
    match tuning.tile {
        Tile::Bytes | Tile::CooperativeHalf if !coded => Tile::Float,
        Tile::Half if !coded && variant.format != Some(Format::F16) => Tile::Float,
        tile => tile,
    }
}

fn tile_file(tile: Tile) -> &'static str {
    match tile {
        Tile::None | Tile::Float => "common/tile_float.wgsl",
        Tile::Half => "common/tile_half.wgsl",
        Tile::Bytes => "common/tile_bytes.wgsl",
        Tile::CooperativeFloat => "common/tile_cooperative_float.wgsl",
        Tile::CooperativeHalf => "common/tile_cooperative_half.wgsl",
    }
}

/// Extensions of WGSL that a kernel is written with.
fn extensions(variant: &Variant, tuning: &Tuning) -> String {
    let mut text = String::new();
    if matches!(variant.kernel, Kernel::MatMul | Kernel::ExpertMul) {
        let tile = tile(variant, tuning);
        if tile.needs_f16() {
            text += "enable f16;\n";
        }
        if tile.is_cooperative() {
            text += "enable wgpu_cooperative_matrix;\n";
        }
    }
    text
}

/// Whether keys and values are cached in blocks.
fn has_blocks(variant: &Variant) -> bool {
    variant.cache.is_some_and(|cache| !matches!(cache, KvFormat::F32 | KvFormat::F16))
}

/// Writes the lines between `#repeat x NUMBER` and its `#end` so many times, with `$x` counting from 0: loops whose turns must
/// have registers of their own, whatever a driver thinks of unrolling.
fn repeat(lines: &[&str], numbers: &[(&str, u32)], text: &mut String) -> Result<(), String> {
    let mut at = 0;
    while at < lines.len() {
        let Some(what) = lines[at].strip_prefix("#repeat ") else {
            text.push_str(lines[at]);
            text.push('\n');
            at += 1;
            continue;
        };
        let (name, count) = what.split_once(' ').ok_or_else(|| format!("'{what}' lacks a number"))?;
        let named = numbers.iter().find(|(n, _)| *n == count).map(|(_, value)| *value);
        let count = named.or_else(|| count.parse().ok()).ok_or_else(|| format!("'{count}' is no number"))?;
        let end = end_of(&lines[at + 1..]).ok_or_else(|| format!("'#repeat {what}' has no end"))? + at + 1;
        for turn in 0..count {
            let turn = turn.to_string();
            let body: Vec<String> = lines[at + 1..end].iter().map(|l| l.replace(&format!("${name}"), &turn)).collect();
            repeat(&body.iter().map(String::as_str).collect::<Vec<_>>(), numbers, text)?;
        }
        at = end + 1;
    }
    Ok(())
}

/// The line that ends a repetition, whose first line is given.
fn end_of(lines: &[&str]) -> Option<usize> {
    let mut open = 1;
    lines.iter().position(|line| {
        open += i32::from(line.starts_with("#repeat ")) - i32::from(*line == "#end");
        open == 0
    })
}

/// Bytes of a workgroup's memory that the delta rule in chunks needs.
pub const fn chunk_bytes(tuning: &Tuning) -> u32 {
    let keys_and_queries = 2 * CHUNK_ROWS * MAX_CHUNK_KEYS;
    let products_and_values = CHUNK_ROWS * (tuning.chunk_threads + tuning.chunk_channels);
    let of_rows = CHUNK_ROWS * (2 * CHUNK_ROWS + 4);
    4 * (keys_and_queries + products_and_values + of_rows)
}

/// Threads of a workgroup.
fn threads(variant: &Variant, tuning: &Tuning) -> u32 {
    match variant.kernel {
        Kernel::MatVec | Kernel::MatMul | Kernel::ExpertVec | Kernel::ExpertMul => tuning.threads,
        Kernel::DeltaRule => tuning.delta_threads,
        Kernel::DeltaChunks => tuning.chunk_threads,
        Kernel::Attention | Kernel::AttentionMerge | Kernel::CausalConv | Kernel::IndexScores | Kernel::Quantise => 64,
        // A thread has a block of 32 columns.
        Kernel::KvAppend if has_blocks(variant) => 8,
        Kernel::RmsNorm
        | Kernel::HeadNormRope
        | Kernel::DeltaFinish
        | Kernel::IndexAppend
        | Kernel::NgramGate
        | Kernel::Router => tuning.row_threads,
        _ => 256,
    }
}

/// Numbers of a variant, by the names of their constants.
fn numbers(variant: &Variant, tuning: &Tuning, parts: u32) -> Vec<(&'static str, u32)> {
    let (outs, batch, lanes) = match variant.kernel {
        Kernel::MatMul | Kernel::ExpertMul => {
            let (outs, rows) = tuning.matrix_share();
            (outs, rows, 1)
        }
        _ => (tuning.outs, variant.batch.max(1), tuning.lanes),
    };
    let chunk_quads = MAX_CHUNK_KEYS / 4 * tuning.chunk_channels / tuning.chunk_threads;
    let numbers = [
        ("THREADS", threads(variant, tuning)),
        ("PARTS", parts),
        ("SUBGROUP", tuning.subgroup),
        ("BATCH", batch),
        ("LANES", lanes),
        ("OUTS", outs),
        ("LANE_SLOTS", if variant.gated { 2 } else { 1 }),
        ("MAX_HEAD_DIM", MAX_HEAD_DIM),
        ("MAX_KEY_DIM", MAX_KEY_DIM),
        ("CHUNK_ROWS", CHUNK_ROWS),
        ("CHUNK_CHANNELS", tuning.chunk_channels),
        ("CHUNK_QUADS", chunk_quads),
        ("CHUNK_OCTETS", chunk_quads / 8),
        ("MAX_CHUNK_KEYS", MAX_CHUNK_KEYS),
        ("MAX_EXPERTS", MAX_EXPERTS),
        ("TABLES_BINDING", TABLES_BINDING),
    ];
    numbers.into_iter().chain(TABLE_PLACES).collect()
}

fn constants(variant: &Variant, numbers: &[(&str, u32)]) -> String {
    let mut text = String::new();
    for (name, value) in numbers {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    for (name, values) in [("IQ4_VALUES", &IQ4_VALUES), ("E2M1_VALUES", &E2M1_DOUBLED)] {
        let [a, b, c, d] = packed(values);
        let _ = writeln!(text, "const {name}: vec4<u32> = vec4<u32>({a}u, {b}u, {c}u, {d}u);");
    }
    let _ = writeln!(text, "const GATED: bool = {};", variant.gated);
    let (keys, values) = variant.cache.map_or((Format::F32, Format::F32), KvFormat::formats);
    let _ = writeln!(text, "const CACHE_F16: bool = {};", keys == Format::F16);
    let _ = writeln!(text, "const KEYS_HAVE_4_BITS: bool = {};", keys == Format::Q4_0);
    let _ = writeln!(text, "const VALUES_HAVE_4_BITS: bool = {};", values == Format::Q4_0);
    text
}

/// Sixteen signed bytes as four words.
fn packed(values: &[i8; 16]) -> [u32; 4] {
    std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|i| values[4 * word + i] as u8)))
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

/// Where each codebook begins among the words of [`tables`].
const TABLE_PLACES: [(&str, u32); 6] = [
    ("IQ2XXS_AT", IQ2XXS_AT),
    ("IQ2XS_AT", IQ2XS_AT),
    ("IQ2S_AT", IQ2S_AT),
    ("IQ1S_AT", IQ1S_AT),
    ("IQ3XXS_AT", IQ3XXS_AT),
    ("IQ3S_AT", IQ3S_AT),
];

/// All codebooks as words.
pub fn tables() -> Vec<u32> {
    let mut words: Vec<u32> = vec![];
    for grid in [&IQ2XXS_GRID[..], &IQ2XS_GRID[..], &IQ2S_GRID[..], &IQ1S_GRID[..]] {
        words.extend(grid.iter().flat_map(|entry| [*entry as u32, (*entry >> 32) as u32]));
    }
    words.extend(IQ3XXS_GRID.iter().chain(&IQ3S_GRID));
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
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::*;
    use crate::backend::gpu::KERNELS;
    use crate::backend::gpu::join::MAX_PARTS;
    use crate::backend::gpu::kernels::{BATCHES, Kinds};
    use crate::backend::webgpu::tuning::BROADCAST_THREADS;
    use crate::quant::{FORMATS, Format};

    /// Every variant that lowering can ask for.
    fn variants() -> Vec<Variant> {
        let mut all = vec![];
        for info in KERNELS {
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

    /// Every choice of kernels there is; for each kind of tile, what cards with it would be given.
    fn tunings() -> Vec<Tuning> {
        let mut all = vec![Tuning::modest(), Tuning::plain(8), Tuning::plain(32), Tuning::processor(BROADCAST_THREADS)];
        all.extend(Tile::ALL.map(|tile| Tuning::subgroups(32).with_tile(tile)));
        all
    }

    /// Whether a choice of tiles makes another kernel of a variant.
    fn depends_on_tile(variant: &Variant) -> bool {
        matches!(variant.kernel, Kernel::MatMul | Kernel::ExpertMul)
    }

    /// The most that drivers must offer for a kernel.
    fn capabilities(variant: &Variant, tuning: &Tuning) -> Capabilities {
        let mut needed = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        needed.set(Capabilities::SUBGROUP, tuning.subgroup > 0);
        let extensions = extensions(variant, tuning);
        needed.set(Capabilities::SHADER_FLOAT16, extensions.contains("f16"));
        needed.set(Capabilities::COOPERATIVE_MATRIX, extensions.contains("cooperative"));
        needed
    }

    /// Writes a kernel as Vulkan, Direct3D 12 and Metal compile it. Direct3D has no cooperative matrices, and Metal none of 16 x 16.
    fn translate(name: &str, module: &naga::Module, info: &naga::valid::ModuleInfo, tuning: &Tuning) {
        use naga::back::{hlsl, msl, spv};

        let written = spv::write_vec(module, info, &spv::Options { lang_version: (1, 4), ..spv::Options::default() }, None);
        written.unwrap_or_else(|e| panic!("{name} in SPIR-V: {e}"));
        if !tuning.tile.is_cooperative() {
            let shader_model = match tuning {
                tuning if tuning.tile.needs_f16() => hlsl::ShaderModel::V6_2,
                tuning if tuning.subgroup > 0 => hlsl::ShaderModel::V6_0,
                _ => hlsl::ShaderModel::V5_1,
            };
            let options = hlsl::Options { shader_model, ..hlsl::Options::default() };
            let mut text = String::new();
            let written = hlsl::Writer::new(&mut text, &options, &hlsl::PipelineOptions::default()).write(module, info, None);
            written.unwrap_or_else(|e| panic!("{name} in HLSL: {e}"));
        }
        if tuning.tile != Tile::CooperativeHalf {
            let options = msl::Options { lang_version: (2, 4), ..msl::Options::default() };
            let written = msl::write_string(module, info, &options, &msl::PipelineOptions::default());
            written.unwrap_or_else(|e| panic!("{name} in MSL: {e}"));
        }
    }

    /// Bytes of workgroup memory that a kernel takes.
    fn workgroup_bytes(module: &naga::Module) -> u32 {
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        shared.map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx())).sum()
    }

    #[test]
    fn every_kernel_is_valid_in_every_variant_and_can_be_written_for_every_interface() {
        for tuning in tunings() {
            let other = tuning.tile != Tile::Float && tuning.tile != Tile::None;
            for variant in variants().into_iter().filter(|variant| !other || depends_on_tile(variant)) {
                // One part and the most differ in constants alone.
                let parts = if has_parts(variant.kernel) { MAX_PARTS as u32 } else { 1 };
                let source = compose(&variant, &tuning, parts).unwrap();
                let module = naga::front::wgsl::parse_str(&source)
                    .unwrap_or_else(|e| panic!("{}: {}", variant.name(), e.emit_to_string(&source)));
                let mut validator = Validator::new(ValidationFlags::all(), capabilities(&variant, &tuning));
                let info =
                    validator.validate(&module).unwrap_or_else(|e| panic!("{}: {}", variant.name(), e.emit_to_string(&source)));
                translate(&variant.name(), &module, &info, &tuning);
                let most = if variant.kernel == Kernel::DeltaChunks { chunk_bytes(&tuning) } else { 24 << 10 };
                let bytes = workgroup_bytes(&module);
                assert!(bytes <= most, "{}: {bytes} bytes of workgroup memory", variant.name());
            }
        }
    }

    #[test]
    fn every_file_is_part_of_some_kernel_and_listed() {
        let composed = |tuning: Tuning| variants().into_iter().map(move |v| compose(&v, &tuning, 1).unwrap());
        let sources: Vec<String> = tunings().into_iter().flat_map(composed).collect();
        for (path, text) in FILES {
            let line = text.lines().find(|l| l.starts_with("fn ") || l.starts_with("@compute"));
            assert!(line.is_none_or(|line| sources.iter().any(|s| s.contains(line))), "{path} is used by no kernel");
        }
    }

    #[test]
    fn codebooks_lie_where_the_kernels_look() {
        let words = tables();
        assert_eq!(words.len() as u32, IQ3S_AT + 512);
        assert_eq!(words[IQ2S_AT as usize + 2 * 77 + 1], (IQ2S_GRID[77] >> 32) as u32);
        assert_eq!(words[IQ3S_AT as usize + 300], IQ3S_GRID[300]);
        assert_eq!(packed(&IQ4_VALUES)[0].to_le_bytes()[1] as i8, -104);
        assert_eq!(packed(&E2M1_DOUBLED)[3].to_le_bytes()[3] as i8, -12);
    }

    #[test]
    fn repetitions_count_nest_and_must_end() {
        let numbers = [("TWO", 2)];
        let text = |source: &str| {
            let mut text = String::new();
            repeat(&source.lines().collect::<Vec<_>>(), &numbers, &mut text).map(|()| text)
        };
        assert_eq!(text("a\n#repeat n TWO\n#repeat k 2\n$n$k\n#end\n#end\nb").unwrap(), "a\n00\n01\n10\n11\nb\n");
        assert_eq!(text("#repeat n 0\nx\n#end").unwrap(), "");
        assert!(text("#repeat n 2\nx").is_err());
        assert!(text("#repeat n MANY\nx\n#end").is_err());
    }
}
