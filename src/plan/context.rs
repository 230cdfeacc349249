//! Everything that is the same for all layouts: the user's numbers resolved, cards with gaps filled, popularity of
//! experts. Made once a plan.

use super::limits::{KvType, Limits, RamExperts};
use super::machine::{BackendKind, Card, Machine, Os};
use super::model::{ConvFacts, FormatBytes, LayerFacts, Mixer, PlanModel};
use super::refusal::Refusal;
use super::rules::{self, CardRates, DriverBytes, HostRates, Notes};
use super::size::MAX_SIZE_BYTES;
use super::work::{self, WorkTable};
use crate::model::{MAX_PICTURE_TOKENS, MIN_PICTURE_TOKENS};

/// Index of a card in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct CardIndex(pub usize);

/// A card with every gap filled.
#[derive(Debug, Clone)]
pub struct CardFacts {
    pub capacity: u64,
    pub floor: u64,
    pub floor_why: &'static str,
    /// Largest piece that cannot be cut, and largest buffer.
    pub max_piece: u64,
    pub max_buffer: u64,
    pub driver: DriverBytes,
    pub rates: CardRates,
    /// Weights are read as fast as the CPU multiplies them, which depends on their format.
    pub reads_as_cpu: bool,
    /// The host's own cores: experts lie in place.
    pub in_place: bool,
    pub shares_host: bool,
    /// Equal to an earlier card in everything that matters: only one order of them is looked at.
    pub same_as: Option<usize>,
}

/// Bytes a second of weights from RAM that the CPU multiplies with a row of activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerRates {
    pub dense: f64,
    pub experts: f64,
}

pub struct Context<'a> {
    pub model: &'a PlanModel,
    pub machine: &'a Machine,
    pub limits: &'a Limits,
    pub context_tokens: u32,
    /// KV cells of a slot, whole blocks of the indexer.
    pub cells: u64,
    /// Cells of a slot that stay on the card.
    pub resident_cells: u64,
    pub cards: Vec<CardFacts>,
    /// Cards that the planner may use.
    pub eligible: Vec<usize>,
    pub host_rates: HostRates,
    pub notes: Notes,
    /// Usable RAM and commit, where slots must heed them because experts may stay on disk.
    pub host_usable: Option<(u64, u64)>,
    /// Rows of a window whose scores are wanted, at most.
    pub outputs: u32,
    /// Buffers of layers, packed.
    pub work: WorkTable,
    /// How fast the CPU multiplies weights, layer by layer.
    pub cpu: Vec<LayerRates>,
    popularity: Vec<(u32, Vec<f64>)>,
    /// Layers by rising slab size: extra slots go to the smallest first.
    pub by_slab: Vec<usize>,
}

impl<'a> Context<'a> {
    pub fn new(model: &'a PlanModel, machine: &'a Machine, limits: &'a Limits) -> Result<Context<'a>, Box<Refusal>> {
        check_limits(model, machine, limits)?;
        let mut notes = Notes::default();
        let host_rates = rules::host_rates(machine, &mut notes);
        let context_tokens = limits.context.unwrap_or(model.trained_context.min(super::limits::DEFAULT_CONTEXT));
        let cells = u64::from(context_tokens).next_multiple_of(cell_block(model));
        let resident = limits.resident_kv.map_or(cells, |r| u64::from(r).next_multiple_of(cell_block(model)).min(cells));
        let eligible = eligible_cards(machine, limits)?;
        let cpu = cpu_rates(model, machine, &host_rates, &mut notes);
        let mut cards: Vec<CardFacts> = Vec::with_capacity(machine.cards.len());
        for (i, card) in machine.cards.iter().enumerate() {
            let mut quiet = Notes::default();
            let same_as = (0..i).find(|&j| eligible.contains(&j) && same_facts(&machine.cards[j], card));
            let sink = if eligible.contains(&i) && same_as.is_none() { &mut notes } else { &mut quiet };
            cards.push(card_facts(card, limits, &host_rates, same_as, sink));
        }
        let popularity = popularity_tables(model);
        if !popularity.is_empty() {
            notes.add("expert popularity", "rank^-1.2 in every layer", "no profile of this model is at hand");
        }
        if limits.draft {
            notes.add("drafted tokens kept", format!("{:.0} %", rules::DRAFT_ACCEPTANCE * 100.0), "no measurement of this model");
        }
        let mut by_slab: Vec<usize> = (0..model.layers.len()).filter(|&l| model.layers[l].experts.is_some()).collect();
        by_slab.sort_by_key(|&l| (model.layers[l].experts.as_ref().map_or(0, |e| e.slab_bytes), l));
        let all_rows = model.wants_all_rows;
        let usual = if all_rows { u32::MAX } else { limits.slots.min(rules::JOINT_ROWS) * limits.window_rows() };
        let outputs = limits.outputs.unwrap_or(usual);
        let mut ctx = Context {
            model,
            machine,
            limits,
            context_tokens,
            cells,
            resident_cells: resident,
            cards,
            eligible,
            host_rates,
            notes,
            host_usable: None,
            outputs,
            work: WorkTable::new(std::iter::empty()),
            cpu,
            popularity,
            by_slab,
        };
        ctx.work = WorkTable::new(ctx.chunks().into_iter().flat_map(|chunk| work::shapes(&ctx, chunk)));
        Ok(ctx)
    }

    /// Share of expert calls that `held` of `count` experts answer, most popular first.
    pub fn hit(&self, count: u32, held: u32) -> f64 {
        let table = self.popularity.iter().find(|(n, _)| *n == count);
        table.and_then(|(_, sums)| sums.get(held as usize)).copied().unwrap_or(1.0)
    }

    /// Prompt chunks to try, smallest first. They do not depend on the context: a smaller context must not plan worse.
    pub fn chunks(&self) -> Vec<u32> {
        if let Some(chunk) = self.limits.prefill {
            return vec![chunk];
        }
        let played = |&i: &usize| !self.machine.cards[i].backend.has_kernels();
        let most = if self.eligible.iter().all(played) { rules::CPU_CHUNK } else { u32::MAX };
        rules::CHUNKS.into_iter().filter(|chunk| *chunk <= most).collect()
    }

    /// Rows of a chunk's buffers: no more than there can be tokens.
    pub fn chunk_rows(&self, chunk: u32) -> u64 {
        u64::from(chunk.min(self.context_tokens).max(1))
    }

    pub fn layers(&self) -> usize {
        self.model.layers.len()
    }

    pub fn is_windows(&self) -> bool {
        self.machine.host.os == Os::Windows
    }
}

/// Cells come in whole blocks of the indexer.
fn cell_block(model: &PlanModel) -> u64 {
    let ratios = model.layers.iter().filter_map(|l| match l.mixer {
        Mixer::Attention { index: Some(i), .. } => Some(u64::from(i.ratio)),
        _ => None,
    });
    ratios.max().unwrap_or(1).max(1)
}

fn check_limits(model: &PlanModel, machine: &Machine, limits: &Limits) -> Result<(), Box<Refusal>> {
    let wrong = |what: String| Err(Box::new(Refusal::invalid(what)));
    if let Err(problem) = machine.check() {
        return wrong(problem.to_string());
    }
    let bounded = [
        ("a context (-c) of", limits.context.unwrap_or(1), rules::MAX_CONTEXT),
        ("a prompt chunk of", limits.prefill.unwrap_or(1), rules::MAX_CHUNK),
        ("a number of slots of", limits.slots, rules::MAX_SLOTS),
        ("--draft-window", limits.draft_window, rules::MAX_DRAFT_WINDOW),
        ("--resident-kv", limits.resident_kv.unwrap_or(1), rules::MAX_CONTEXT),
        ("rows of a decode window", limits.least_decode_rows, rules::MAX_CHUNK),
        ("rows that are taken back", limits.undo_tokens.saturating_add(1), rules::MAX_CHUNK),
        ("the prompt of the workload of", limits.workload.prompt_tokens, rules::MAX_CONTEXT),
    ];
    if let Some((flag, value, most)) = bounded.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
        return wrong(format!("{flag} {value} is outside 1 to {most}"));
    }
    if limits.checkpoints > rules::MAX_CHECKPOINTS {
        return wrong(format!("--checkpoints {} is more than {}", limits.checkpoints, rules::MAX_CHECKPOINTS));
    }
    if limits.draft && model.draft.is_none() {
        return wrong(
            "--draft on: the model has no draft block inside; use --draft off ('strata plan' takes one by --draft-file)".into(),
        );
    }
    if limits.vision && model.vision.is_none() {
        return wrong(
            "--vision on: no vision encoder is there; --vision-file names one (mmproj-....gguf), --vision off does without"
                .into(),
        );
    }
    if !(MIN_PICTURE_TOKENS..=MAX_PICTURE_TOKENS).contains(&limits.vision_tokens) {
        let tokens = limits.vision_tokens;
        return wrong(format!("--vision-tokens {tokens} is outside {MIN_PICTURE_TOKENS} to {MAX_PICTURE_TOKENS}"));
    }
    let sizes = [("--reserve", limits.reserve), ("--cache-ram", Some(limits.cache_ram)), ("--ram-budget", limits.ram_budget)];
    if let Some((flag, _)) = sizes.into_iter().find(|(_, size)| size.is_some_and(|bytes| bytes > MAX_SIZE_BYTES)) {
        return wrong(format!("{flag} is more than 1024 TiB, which no PC has"));
    }
    if let Err(problem) = model.check() {
        return wrong(problem.to_string());
    }
    let state = state_bytes(model, limits);
    if state > MAX_SIZE_BYTES as f64 {
        return wrong(format!(
            "a context (-c) and --slots that take {:.0} TiB of state: no PC has that",
            state / (1u64 << 40) as f64
        ));
    }
    if limits.vision_arenas.is_some_and(|arenas| arenas.weights_bytes.max(arenas.work_bytes) > MAX_SIZE_BYTES) {
        return wrong("a measured arena of the vision encoder is more than 1024 TiB, which no PC has".into());
    }
    if limits.scratch.iter().flatten().any(|s| s.card_bytes.max(s.host_bytes) > MAX_SIZE_BYTES) {
        return wrong("measured scratch is more than 1024 TiB, which no PC has".into());
    }
    if limits.scratch.as_ref().map(Vec::len).is_some_and(|n| limits.layer_split.as_ref().map(Vec::len) != Some(n)) {
        return wrong("measured scratch needs an explicit layer split with as many stages".into());
    }
    check_split(model, limits)
}

/// State of all slots with every version, in floating point, which cannot overflow.
fn state_bytes(model: &PlanModel, limits: &Limits) -> f64 {
    let cells =
        f64::from(limits.context.unwrap_or(model.trained_context.min(super::limits::DEFAULT_CONTEXT))) + cell_block(model) as f64;
    let versions = f64::from(limits.versions());
    let conv = |c: &ConvFacts| (f64::from(c.rows) + versions) * f64::from(c.channels) * 4.0;
    let draft = model.draft.as_ref().map(|d| &d.block);
    let of_layer = |layer: &LayerFacts| {
        let own = match &layer.mixer {
            Mixer::Attention { kv_heads, head_dim, index, .. } => {
                let keys = index.map_or(0.0, |i| 8.0 * f64::from(i.dim));
                cells * (kv_cell_bytes(limits.kv, *kv_heads, *head_dim) as f64 + keys)
            }
            Mixer::Delta { value_heads, key_dim, value_dim, conv: own } => {
                versions * 4.0 * f64::from(*value_heads) * f64::from(*key_dim) * f64::from(*value_dim) + conv(own)
            }
        };
        own + layer.ngram_conv.as_ref().map_or(0.0, conv)
    };
    model.layers.iter().chain(draft).map(of_layer).sum::<f64>() * f64::from(limits.slots)
}

fn check_split(model: &PlanModel, limits: &Limits) -> Result<(), Box<Refusal>> {
    let Some(split) = &limits.layer_split else { return Ok(()) };
    let mut next = 0;
    for range in split {
        if range.start != next || range.end <= range.start {
            return Err(Box::new(Refusal::invalid(format!("--layer-split: range {range} should begin at layer {next}"))));
        }
        next = range.end;
    }
    if next as usize != model.layers.len() {
        let what = format!("--layer-split ends at layer {}, the model has {} layers", next.saturating_sub(1), model.layers.len());
        return Err(Box::new(Refusal::invalid(what)));
    }
    Ok(())
}

fn eligible_cards(machine: &Machine, limits: &Limits) -> Result<Vec<usize>, Box<Refusal>> {
    let wrong = |what: String| Err(Box::new(Refusal::invalid(what)));
    let eligible: Vec<usize> = match &limits.devices {
        Some(ids) => {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let Some(at) = machine.cards.iter().position(|c| c.id == *id) else {
                    let known = machine.cards.iter().map(|c| c.id.as_str()).collect::<Vec<_>>().join(", ");
                    return wrong(format!("--device {id}: this machine has {known}"));
                };
                if found.contains(&at) {
                    return wrong(format!("--device: {id} is listed twice"));
                }
                if let Some(twin) = found.iter().find(|&&other| machine.cards[other].is_same_hardware(&machine.cards[at])) {
                    return wrong(format!("--device: {} and {id} are the same card", machine.cards[*twin].id));
                }
                found.push(at);
            }
            found
        }
        None => {
            let all = 0..machine.cards.len();
            let of_its_own =
                |i: &usize| machine.cards[*i].backend != BackendKind::Cpu && machine.cards[*i].by_name_only.is_none();
            let gpus: Vec<usize> = all.clone().filter(of_its_own).collect();
            if gpus.is_empty() { all.filter(|&i| machine.cards[i].by_name_only.is_none()).collect() } else { gpus }
        }
    };
    let stricter = |&i: &usize| machine.cards[i].alignment.is_some_and(|a| u64::from(a) > crate::program::ARENA_ALIGN_BYTES);
    if let Some(card) = eligible.iter().find(|i| stricter(i)).map(|&i| &machine.cards[i]) {
        let align = card.alignment.unwrap_or(0);
        let what = format!("{} wants buffers aligned to {align} bytes; programs align to 256", card.id);
        return Err(Box::new(Refusal::no_device(what)));
    }
    if eligible.is_empty() {
        return Err(Box::new(Refusal::no_device("the machine has no device at all, not even a CPU".into())));
    }
    let ranges = limits.layer_split.as_ref().map(Vec::len);
    if ranges.is_some_and(|ranges| ranges > eligible.len()) {
        return wrong(format!("--layer-split has more ranges than there are cards ({})", eligible.len()));
    }
    if let (Some(ranges), Some(ids)) = (ranges, &limits.devices)
        && ranges != ids.len()
    {
        return wrong(format!("--device names {} cards, --layer-split has {ranges} range(s): give one for each card", ids.len()));
    }
    if let Some(most) = ranges.or(limits.devices.as_ref().map(Vec::len)).filter(|n| *n > rules::MAX_STAGES) {
        return wrong(format!("{most} cards are asked for; a model can be spread over {} at most", rules::MAX_STAGES));
    }
    Ok(eligible)
}

fn same_facts(a: &Card, b: &Card) -> bool {
    let plain = |c: &Card| Card { id: String::new(), name: String::new(), uuid: None, pci: None, ..c.clone() };
    plain(a) == plain(b)
}

fn card_facts(card: &Card, limits: &Limits, host: &HostRates, same_as: Option<usize>, notes: &mut Notes) -> CardFacts {
    let (table_floor, why) = rules::card_floor(card);
    let reserve = limits.reserve.unwrap_or(0);
    let in_place = card.backend == BackendKind::Cpu && limits.ram_experts != RamExperts::Disk;
    let raised = reserve > table_floor && card.backend != BackendKind::Cpu;
    let (floor, floor_why) = if raised { (reserve, "--reserve") } else { (table_floor, why) };
    CardFacts {
        capacity: card.free.0,
        floor,
        floor_why,
        max_piece: card.max_binding.or(card.max_buffer).map_or(u64::MAX, |s| s.0).min(card.max_buffer.map_or(u64::MAX, |s| s.0)),
        max_buffer: card.max_buffer.map_or(u64::MAX, |s| s.0),
        driver: driver_bytes(card, notes),
        rates: rules::card_rates(card, host, notes),
        reads_as_cpu: card.backend == BackendKind::Cpu && card.memory_gbs.is_none(),
        in_place,
        shares_host: card.shares_host_memory || card.backend == BackendKind::Cpu,
        same_as,
    }
}

fn driver_bytes(card: &Card, notes: &mut Notes) -> DriverBytes {
    let assumed = rules::assumed_driver_bytes(card.backend, card.driver);
    if card.opened {
        // Context, code and handles exist already: the free figure is without them. Graphs come later.
        let graphs = card.graph_bytes.map_or(assumed.graphs, |s| s.0);
        return DriverBytes { context: 0, modules: 0, library: 0, graphs, host: assumed.host };
    }
    let mut pick = |known: Option<super::size::Size>, what: &str, value: u64| {
        known.map_or_else(
            || {
                if value > 0 {
                    notes.add(format!("{}: {what}", card.id), super::size::human(value), "not measured on this card");
                }
                value
            },
            |s| s.0,
        )
    };
    DriverBytes {
        context: pick(card.context_bytes, "driver context", assumed.context),
        modules: pick(card.module_bytes, "kernel code", assumed.modules),
        library: pick(card.library_bytes, "library handles and workspace", assumed.library),
        graphs: pick(card.graph_bytes, "captured graphs", assumed.graphs),
        host: assumed.host,
    }
}

/// Rates of all layers, and of the head behind them. A format that was not measured is taken to be as fast as the one that was.
fn cpu_rates(model: &PlanModel, machine: &Machine, host: &HostRates, notes: &mut Notes) -> Vec<LayerRates> {
    let usual = host.cpu_weights_gbs * 1e9;
    let rate = |format| machine.host.format_gbs(format).map_or(usual, |gbs| (gbs * 1e9).min(host.ram_gbs * 1e9));
    let of = |bytes: &FormatBytes| {
        let (sum, seconds) = (bytes.0.iter().map(|(_, n)| *n as f64).sum::<f64>(), bytes.seconds(rate));
        if seconds > 0.0 { sum / seconds } else { usual }
    };
    let experts = model.layers.iter().filter_map(|l| l.experts.as_ref());
    let mut unmeasured: Vec<&str> = experts
        .flat_map(|e| &e.by_format.0)
        .filter(|(format, _)| machine.host.format_gbs(*format).is_none())
        .map(|(format, _)| format.name())
        .collect();
    unmeasured.sort_unstable();
    unmeasured.dedup();
    if !unmeasured.is_empty() {
        let why = "the CPU was not measured with this format; formats differ by up to three times";
        notes.add(format!("experts of {} that the CPU computes", unmeasured.join(", ")), format!("{:.1} GB/s", usual / 1e9), why);
    }
    let none = FormatBytes::default();
    let layers = model.layers.iter().map(|l| (&l.dense_formats, l.experts.as_ref().map_or(&none, |e| &e.by_format)));
    let all = layers.chain([(&model.head_formats, &none)]);
    all.map(|(dense, experts)| LayerRates { dense: of(dense), experts: of(experts) }).collect()
}

/// For every number of experts that occurs: share of calls answered by the n most popular.
fn popularity_tables(model: &PlanModel) -> Vec<(u32, Vec<f64>)> {
    let mut counts: Vec<u32> = model.layers.iter().filter_map(|l| l.experts.as_ref()).map(|e| e.count).collect();
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter().map(|count| (count, popularity(count))).collect()
}

fn popularity(count: u32) -> Vec<f64> {
    let mut sums = Vec::with_capacity(count as usize + 1);
    let mut total = 0.0;
    sums.push(0.0);
    for rank in 1..=count {
        total += f64::from(rank).powf(-rules::EXPERT_POPULARITY_EXPONENT);
        sums.push(total);
    }
    for sum in &mut sums {
        *sum /= total;
    }
    sums
}

/// Bytes of one resident or spilled KV cell of an attention layer.
pub fn kv_cell_bytes(kv: KvType, kv_heads: u32, head_dim: u32) -> u64 {
    kv.cell_bytes(kv_heads, head_dim)
}
