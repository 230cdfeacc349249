//! How each row's number came about, in words and numbers.

use super::consumer::Consumer;
use super::context::{Context, kv_cell_bytes};
use super::host::{HostNeed, LayoutSums};
use super::model::{LayerFacts, Mixer};
use super::rows::{Pool, SizedStage};
use super::rules;
use super::size::{grouped, human};
use super::stage;
use super::work;

pub fn card_formula(ctx: &Context<'_>, stage: &SizedStage, chunk: u32, consumer: Consumer) -> String {
    let range = stage.range;
    let layers = &ctx.model.layers[range.indices()];
    let slots = ctx.limits.slots;
    match consumer {
        Consumer::DriverContext | Consumer::ModuleCode | Consumer::LibraryWorkspace | Consumer::Graphs => {
            driver(ctx, stage, consumer)
        }
        Consumer::DenseWeights => format!("every tensor of layers {range} but the experts, each rounded up to 256 B"),
        Consumer::Head if ctx.model.tied_head => "final norm and output matrix (a copy of the tied embedding)".into(),
        Consumer::Head => "final norms and output matrix".into(),
        Consumer::DraftWeights => "the draft block without its experts, with its own head if it has one".into(),
        Consumer::DraftExperts => draft_experts(ctx),
        Consumer::ExpertsInPlace => format!("all experts of layers {range}: the CPU reads them where they are loaded"),
        Consumer::KvCache => kv(ctx, layers, ctx.resident_cells),
        Consumer::DraftKv => format!("{slots} slot(s) x {} cells of the draft block, {}", ctx.cells, ctx.limits.kv.name()),
        Consumer::IndexKeys => index(ctx, layers),
        Consumer::RecurrentState => recurrent(ctx, layers),
        Consumer::ConvHistory => {
            format!(
                "{slots} slot(s) x inputs of the convolutions before a window, {} more for drafts, f32",
                ctx.limits.versions() - 1
            )
        }
        Consumer::HandOff => {
            let (rows, floats) = (stage::most_rows(ctx, chunk), ctx.model.stream_floats());
            format!("{rows} rows x {floats} floats x 4 B, at the bottom of the prompt's buffers")
        }
        Consumer::SlotTables => format!("a number for each expert of layers {range}: the slot that holds it"),
        Consumer::PromptWork => work_text(ctx, stage, chunk, true),
        Consumer::DecodeWork => work_text(ctx, stage, chunk, false),
        Consumer::KernelScratch if ctx.limits.scratch.is_some() => "as the programs were lowered for this card".into(),
        Consumer::KernelScratch => {
            let rows = stage::most_rows(ctx, chunk);
            format!(
                "{rows} rows x {} floats x 4 B: experts' products, rounded activations",
                grouped(stage::scratch_floats(ctx, range))
            )
        }
        Consumer::SelectionScores => {
            format!(
                "{} queries at a time x blocks of {} cells x 4 B",
                rules::SCORE_ROWS.min(stage::most_rows(ctx, chunk)),
                ctx.cells
            )
        }
        Consumer::KvWindow => format!("{} cells of one layer, {}", ctx.cells, ctx.limits.kv.name()),
        Consumer::ExpertSlots => slots_text(ctx, stage),
        Consumer::LentSlots => lent_text(stage),
        _ => consumer.text().into(),
    }
}

fn driver(ctx: &Context<'_>, stage: &SizedStage, consumer: Consumer) -> String {
    let card = &ctx.machine.cards[stage.card];
    let measured = match consumer {
        Consumer::DriverContext => card.context_bytes,
        Consumer::ModuleCode => card.module_bytes,
        Consumer::LibraryWorkspace => card.library_bytes,
        _ => card.graph_bytes,
    };
    if measured.is_some() {
        "measured on this card".into()
    } else {
        "assumed for this backend and driver (see assumptions)".into()
    }
}

fn draft_experts(ctx: &Context<'_>) -> String {
    let experts = ctx.model.draft.as_ref().and_then(|d| d.block.experts.as_ref());
    experts.map_or_else(String::new, |e| format!("{} experts x {} B, {}", e.count, grouped(e.slab_bytes), e.formats))
}

fn kv(ctx: &Context<'_>, layers: &[LayerFacts], cells: u64) -> String {
    let sizes: Vec<u64> = layers
        .iter()
        .filter_map(|l| match l.mixer {
            Mixer::Attention { kv_heads, head_dim, .. } => Some(kv_cell_bytes(ctx.limits.kv, kv_heads, head_dim)),
            Mixer::Delta { .. } => None,
        })
        .collect();
    let spilled =
        if cells < ctx.cells { format!(" (of {}, the others in pinned RAM)", grouped(ctx.cells)) } else { String::new() };
    let cell = sizes.first().copied().unwrap_or(0);
    let slots = ctx.limits.slots;
    format!(
        "{} layer(s) x {slots} slot(s) x {} cells{spilled} x {cell} B ({})",
        sizes.len(),
        grouped(cells),
        ctx.limits.kv.name()
    )
}

fn index(ctx: &Context<'_>, layers: &[LayerFacts]) -> String {
    let facts: Vec<_> = layers.iter().filter_map(|l| l.index(ctx.cells)).collect();
    let Some(i) = facts.first() else { return String::new() };
    let blocks = ctx.cells / u64::from(i.ratio.max(1));
    let count = facts.len();
    format!(
        "{count} layer(s) x {} slot(s) x ({} cells + {} blocks) x {} x 4 B",
        ctx.limits.slots,
        grouped(ctx.cells),
        grouped(blocks),
        i.dim
    )
}

fn recurrent(ctx: &Context<'_>, layers: &[LayerFacts]) -> String {
    let sizes: Vec<u64> = layers
        .iter()
        .filter_map(|l| match l.mixer {
            Mixer::Delta { value_heads, key_dim, value_dim, .. } => Some(stage::delta_bytes(value_heads, key_dim, value_dim)),
            Mixer::Attention { .. } => None,
        })
        .collect();
    let one = sizes.first().copied().unwrap_or(0);
    let versions = ctx.limits.versions();
    format!("{} layer(s) x {} slot(s) x {versions} version(s) x {} B", sizes.len(), ctx.limits.slots, grouped(one))
}

/// The layer whose buffers take the most, and what packing them reached.
fn work_text(ctx: &Context<'_>, stage: &SizedStage, chunk: u32, prompt: bool) -> String {
    let shape = work::shapes(ctx, chunk)[usize::from(!prompt)];
    let packed = if prompt { stage.option.work.prompt } else { stage.option.work.decode };
    let whose = if packed.layer < stage.range.end { format!("layer {}", packed.layer) } else { "the draft block".into() };
    let handed_on = if prompt { stage.option.bytes.get(Consumer::HandOff) } else { 0 };
    let beside = if handed_on > 0 { ", without the rows that are handed on" } else { "" };
    format!(
        "buffers of {} row(s), {} output(s), packed: {whose} needs the most, {} B, of which {} B live at once{beside}",
        grouped(shape.max_rows.into()),
        shape.max_outputs,
        grouped(packed.report.bytes),
        grouped(packed.report.bound_bytes)
    )
}

fn slots_text(ctx: &Context<'_>, stage: &SizedStage) -> String {
    let held: u64 = stage.option.kept().map(u64::from).sum();
    let all: u64 =
        ctx.model.layers[stage.range.indices()].iter().filter_map(|l| l.experts.as_ref()).map(|e| u64::from(e.count)).sum();
    let least = stage.option.kept().min().unwrap_or(0);
    let most = stage.option.kept().max().unwrap_or(0);
    let why = if stage.option.all_held {
        "all of them".to_string()
    } else if ctx.limits.expert_slots.is_some() {
        "as many as were wished for, and fit above the floor".to_string()
    } else {
        "as many as fit above the floor".to_string()
    };
    let share = held as f64 * 100.0 / (all as f64).max(1.0);
    let loan = match stage::no_loan(ctx, stage.card, stage.range) {
        Some(reason) if !stage.option.all_held => format!("; prompt buffers lie beside them: {reason}"),
        _ => String::new(),
    };
    format!("{} of {} experts ({share:.1} %), {least} to {most} a layer: {why}{loan}", grouped(held), grouped(all))
}

fn lent_text(stage: &SizedStage) -> String {
    let lent: u64 = stage.option.lent.iter().map(|n| u64::from(*n)).sum();
    let least = stage.option.lent.iter().min().copied().unwrap_or(0);
    let most = stage.option.lent.iter().max().copied().unwrap_or(0);
    format!(
        "{} more experts, {least} to {most} a layer, while no prompt is read; their slots are filled again from RAM afterwards",
        grouped(lent)
    )
}

fn vision_work(ctx: &Context<'_>) -> String {
    let (tokens, joined) = (ctx.limits.vision_tokens, ctx.model.vision.as_ref().map_or(0, |v| v.joined));
    let what = if ctx.limits.vision_arenas.is_some() { "as the built program needs them, with scratch" } else { "by the widths" };
    format!("buffers for a picture of --vision-tokens {} x {joined} patches, {what}", grouped(tokens.into()))
}

pub fn host_formula(ctx: &Context<'_>, sums: &LayoutSums, need: &HostNeed, consumer: Consumer, pool: Pool) -> String {
    let rows = ctx.chunk_rows(sums.chunk);
    match consumer {
        Consumer::Process => "code, tokenizer and heap of the program, bounded".into(),
        Consumer::HostScratch => "what the built programs need for each thread, and for all together".into(),
        Consumer::DriverHost => format!("host memory of the drivers of {} card(s)", sums.stages),
        Consumer::EmbeddingCache | Consumer::NgramCache => "recently read rows; the table itself stays in the file".into(),
        Consumer::Checkpoints => format!("{} x recurrent state of one sequence", ctx.limits.checkpoints),
        Consumer::Parked => "--cache-ram; taken as conversations come".into(),
        Consumer::HostHandOff => {
            format!("{} boundary(ies) x 2 buffers x {rows} rows x {} floats x 4 B", sums.stages - 1, ctx.model.stream_floats())
        }
        Consumer::HostStaging => {
            format!("2 x {rows} rows gathered from the tables")
        }
        Consumer::VisionWeights => "every tensor of the vision encoder, the learned places as f32".into(),
        Consumer::VisionWork => vision_work(ctx),
        Consumer::VisionRows => format!(
            "{} pictures x --vision-tokens {} x {} floats x 4 B",
            rules::KEPT_PICTURES,
            grouped(ctx.limits.vision_tokens.into()),
            ctx.model.width
        ),
        Consumer::ExpertBuffers => format!(
            "inputs, hidden values and results of up to {} of {rows} rows at a time, a spare expert, {} reads of the disk",
            crate::experts::MOST_ROWS,
            crate::experts::DiskOptions::default().in_flight
        ),
        Consumer::LoadStaging => "two reads of 64 MiB in flight; given back after loading".into(),
        Consumer::KvSpill => {
            format!(
                "{} slot(s) x {} cells that are not resident, {}",
                ctx.limits.slots,
                grouped(ctx.cells - ctx.resident_cells),
                ctx.limits.kv.name()
            )
        }
        Consumer::RamExperts => ram_experts(ctx, sums, need, pool),
        Consumer::CardsInRam => "everything on devices whose memory is RAM".into(),
        Consumer::CommitOfHost => "Windows charges every private byte of RAM".into(),
        Consumer::CommitOfCards => "Windows charges every byte of device memory".into(),
        _ => consumer.text().into(),
    }
}

fn ram_experts(ctx: &Context<'_>, sums: &LayoutSums, need: &HostNeed, pool: Pool) -> String {
    let total = human(ctx.model.experts_bytes());
    let held = human(sums.held_bytes);
    let kept = match need.ram_experts {
        super::limits::RamExperts::All => format!("every expert has a copy in RAM ({total})"),
        _ => format!("experts that are on no card: {total} - {held}"),
    };
    match pool {
        Pool::Pinned => format!("{kept}; pinned in slices of {} until the limit", human(rules::PIN_SLICE_BYTES)),
        Pool::Disk => format!("{kept}; what RAM does not hold is read when needed"),
        _ if need.pinned_experts > 0 => format!("{kept}; the part that is not pinned"),
        _ => kept,
    }
}
