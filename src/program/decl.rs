//! Declarations: weights, state, buffers and where their bytes lie.

use super::op::Step;
use crate::quant::Format;

/// A piece of one arena on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slice {
    pub arena: ArenaKind,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// The arenas that a backend opens, each of them once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArenaKind {
    /// Read only after loading.
    Weights,
    /// Per-sequence state that outlives a run.
    State,
    /// Buffers of a program. Programs of one stage never run at the same time, so they share these bytes.
    Work,
}

impl ArenaKind {
    pub const ALL: [ArenaKind; 3] = [ArenaKind::Weights, ArenaKind::State, ArenaKind::Work];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// A matrix of `rows` × `cols` (or `experts` of them) in a block format; a vector has one row.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightDecl {
    /// Name of the tensor in the model files.
    pub tensor: String,
    pub format: Format,
    /// Input width: elements of a row.
    pub cols: u32,
    /// Output width: rows of one matrix.
    pub rows: u32,
    /// Matrices in the model; 1 for an ordinary matrix.
    pub experts: u32,
    /// Matrices that the arena has room for. As many as `experts` where all are held, expert `e` then lies in slot `e`; fewer
    /// where a [`StateKind::ExpertSlots`] tells which expert lies where.
    pub slots: u32,
    /// Of these, how many of the last lie on bytes that the work arena has as well ([`Stage::lent_bytes`]).
    pub lent: u32,
    /// First byte of slot 0 in the weights arena.
    pub offset_bytes: u64,
    /// Distance between two slots. Larger than a matrix where the parts of an expert lie together in one slab, and larger than a
    /// slab where the slots of several layers take turns.
    pub expert_stride_bytes: u64,
    /// Bytes of all parts of an expert, each rounded up to the arena's alignment; of an ordinary matrix its own.
    pub slab_bytes: u64,
}

/// What a table of [`StateKind::ExpertSlots`] holds for an expert that lies in no slot.
pub const NO_SLOT: u32 = u32::MAX;

impl WeightDecl {
    /// Bytes of one row. The builder has checked that `cols` is a whole number of blocks.
    pub fn row_bytes(&self) -> u64 {
        self.format.row_bytes(u64::from(self.cols)).unwrap_or(0)
    }

    /// Bytes of one matrix.
    pub fn matrix_bytes(&self) -> u64 {
        self.row_bytes().saturating_mul(u64::from(self.rows))
    }

    /// Where the matrix in `slot` lies.
    pub fn slice(&self, slot: u32) -> Slice {
        Slice {
            arena: ArenaKind::Weights,
            offset_bytes: self.offset_bytes + u64::from(slot) * self.expert_stride_bytes,
            len_bytes: self.matrix_bytes(),
        }
    }

    /// End of the last slot's matrix; 0 where there is no slot.
    pub fn end_bytes(&self) -> u64 {
        self.end_of(self.slots)
    }

    /// End of the last of so many slots' matrix; 0 for none.
    pub fn end_of(&self, slots: u32) -> u64 {
        let last = slots.checked_sub(1).map(|slot| self.slice(slot));
        last.map_or(0, |slice| slice.offset_bytes.saturating_add(slice.len_bytes))
    }

    /// Slots that lie on no other bytes.
    pub fn kept(&self) -> u32 {
        self.slots - self.lent
    }

    /// Whether every expert has its own slot.
    pub fn holds_all(&self) -> bool {
        self.slots == self.experts
    }
}

/// How keys and values are cached. Block formats run along a head: a cell is as many blocks as its elements need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvFormat {
    F32,
    F16,
    /// Both in blocks of [`Format::Q8_0`].
    Q8_0,
    /// Keys in blocks of [`Format::Q8_0`], values of [`Format::Q4_0`].
    K8V4,
    /// Both in blocks of [`Format::Q4_0`].
    Q4_0,
}

impl KvFormat {
    pub const ALL: [KvFormat; 5] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0, KvFormat::K8V4, KvFormat::Q4_0];

    /// Formats of keys and of values.
    pub fn formats(self) -> (Format, Format) {
        match self {
            KvFormat::F32 => (Format::F32, Format::F32),
            KvFormat::F16 => (Format::F16, Format::F16),
            KvFormat::Q8_0 => (Format::Q8_0, Format::Q8_0),
            KvFormat::K8V4 => (Format::Q8_0, Format::Q4_0),
            KvFormat::Q4_0 => (Format::Q4_0, Format::Q4_0),
        }
    }

    /// Bytes of the key and of the value of one head of `head_dim` elements.
    pub fn cell_bytes(self, head_dim: u32) -> (u64, u64) {
        let bytes = |format: Format| {
            let info = format.info();
            u64::from(head_dim).div_ceil(info.block_len as u64) * info.block_bytes as u64
        };
        let (keys, values) = self.formats();
        (bytes(keys), bytes(values))
    }

    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8_0 => "int8",
            KvFormat::K8V4 => "k8v4",
            KvFormat::Q4_0 => "q4_0",
        }
    }
}

/// What a piece of per-sequence state holds. All of it is laid out slot after slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StateKind {
    /// Keys then values of one attention layer: `[kv_head][cell][head_dim]` each, in the formats of [`KvFormat::formats`].
    Kv { format: KvFormat, cells: u32, kv_heads: u32, head_dim: u32 },
    /// Keys of the sparse-attention indexer: raw keys `[cell][dim]` f32, then pooled block keys `[cells / ratio][dim]` f32.
    IndexKeys { cells: u32, dim: u32, ratio: u32 },
    /// Delta-rule state: `[version][head][value channel][key channel]` f32.
    Delta { versions: u32, heads: u32, key_dim: u32, value_dim: u32 },
    /// The last inputs of a causal convolution, a ring by token index: `[ring_rows][channels]` f32.
    ConvHistory { ring_rows: u32, channels: u32 },
    /// Which slot of the weights arena holds which expert of a layer: `[expert]` u32, [`NO_SLOT`] for none. It belongs to no
    /// sequence (one slot of state). The host writes it while no run is in flight; programs only read it.
    ExpertSlots { layer: u32, experts: u32 },
}

impl StateKind {
    /// Bytes for one sequence slot; `u64::MAX` for more than can be counted.
    pub fn bytes_per_slot(&self) -> u64 {
        let product = |unit: u64, factors: [u32; 4]| factors.into_iter().fold(unit, |p, f| p.saturating_mul(u64::from(f)));
        match *self {
            StateKind::Kv { format, cells, kv_heads, head_dim } => {
                let (key, value) = format.cell_bytes(head_dim);
                product(key + value, [cells, kv_heads, 1, 1])
            }
            StateKind::IndexKeys { cells, dim, ratio } => {
                let rows = u64::from(cells) + u64::from(cells / ratio.max(1));
                product(rows, [dim, 4, 1, 1])
            }
            StateKind::Delta { versions, heads, key_dim, value_dim } => product(4, [versions, heads, key_dim, value_dim]),
            StateKind::ConvHistory { ring_rows, channels } => product(4, [ring_rows, channels, 1, 1]),
            StateKind::ExpertSlots { experts, .. } => product(4, [experts, 1, 1, 1]),
        }
    }

    /// Whether forgetting the newest tokens is done by counting, or nothing is to be forgotten (true), or needs a copy from
    /// before (false).
    pub fn truncates(&self) -> bool {
        matches!(self, StateKind::Kv { .. } | StateKind::IndexKeys { .. } | StateKind::ExpertSlots { .. })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StateDecl {
    pub name: String,
    pub kind: StateKind,
    pub slots: u32,
    pub offset_bytes: u64,
    /// Distance between slots: `kind.bytes_per_slot()` rounded up to the arena's alignment.
    pub slot_stride_bytes: u64,
}

impl StateDecl {
    pub fn slice(&self, slot: u32) -> Slice {
        Slice {
            arena: ArenaKind::State,
            offset_bytes: self.offset_bytes + u64::from(slot) * self.slot_stride_bytes,
            len_bytes: self.kind.bytes_per_slot(),
        }
    }

    /// The pieces of a slot that matter after `tokens` tokens, its recurrent part in `version`.
    pub fn held(&self, slot: u32, version: u32, tokens: u64) -> Vec<Slice> {
        let whole = self.slice(slot);
        let piece = |from: u64, len_bytes: u64| Slice { offset_bytes: whole.offset_bytes + from, len_bytes, ..whole };
        match self.kind {
            StateKind::Kv { format, cells, kv_heads, head_dim } => {
                let (key, value) = format.cell_bytes(head_dim);
                let (cells, heads) = (u64::from(cells), u64::from(kv_heads));
                let held = tokens.min(cells);
                let keys = (0..heads).map(|head| piece(head * cells * key, held * key));
                let values = (0..heads).map(|head| piece(heads * cells * key + head * cells * value, held * value));
                keys.chain(values).collect()
            }
            StateKind::IndexKeys { cells, dim, ratio } => {
                let row_bytes = u64::from(dim) * 4;
                let held = tokens.min(u64::from(cells));
                let pooled = held / u64::from(ratio.max(1));
                vec![piece(0, held * row_bytes), piece(u64::from(cells) * row_bytes, pooled * row_bytes)]
            }
            StateKind::Delta { versions, .. } => {
                let version_bytes = whole.len_bytes / u64::from(versions.max(1));
                vec![piece(u64::from(version) * version_bytes, version_bytes)]
            }
            StateKind::ConvHistory { .. } => vec![whole],
            // Not of a sequence: where experts lie.
            StateKind::ExpertSlots { .. } => vec![],
        }
    }
}

/// How many rows a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One per row of the window.
    Batch,
    /// One per wanted output.
    Outputs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    F32,
    U32,
}

/// What the host writes into a buffer before a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InputKind {
    /// Embedding row of each token, already multiplied by `scale`.
    TokenEmbedding { scale: f32 },
    /// The n-gram rows of each token, joined.
    NgramRows,
    /// The residual streams from the stage before.
    HandOff,
    /// Pixels of a picture's patches.
    Patches,
    /// What is added to each patch for its place in the picture.
    PatchPlaces,
}

/// What the host reads from a buffer after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    Logits,
    /// Normed rows of the residual, to be pooled.
    Embedding,
    /// The residual streams for the next stage.
    HandOff,
    /// A picture's rows in place of embedding rows.
    Picture,
}

/// A row-major matrix of 4-byte elements, `rows` × `width`.
#[derive(Debug, Clone, PartialEq)]
pub struct BufferDecl {
    pub name: String,
    pub rows: Rows,
    pub width: u32,
    pub element: Element,
    pub input: Option<InputKind>,
    pub output: Option<OutputKind>,
    /// It passes from layer to layer, as the residual does. Packing places such buffers first.
    pub carried: bool,
    /// Where it lies in the work arena; set by packing.
    pub offset_bytes: u64,
    /// First and last step that touch it; set by packing. Inputs live from step 0, outputs to the last.
    pub first_step: u32,
    pub last_step: u32,
}

impl BufferDecl {
    /// Bytes of the first `rows` rows; `u64::MAX` for more than can be counted.
    pub fn bytes(&self, rows: u32) -> u64 {
        (u64::from(rows) * u64::from(self.width)).saturating_mul(4)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeClass {
    pub max_rows: u32,
    pub max_outputs: u32,
}

impl ShapeClass {
    /// The programs of a stage: one for decode windows, and one for prompts where their chunks have more rows. `outputs` is the
    /// most rows of a window whose scores are wanted.
    pub fn of_programs(decode_rows: u32, prompt_rows: u32, outputs: u32) -> Vec<(&'static str, ShapeClass)> {
        let prompt_rows = prompt_rows.max(1);
        let decode_rows = decode_rows.clamp(1, prompt_rows);
        let shape = |max_rows: u32| ShapeClass { max_rows, max_outputs: outputs.clamp(1, max_rows) };
        let prompt = (prompt_rows > decode_rows).then(|| ("prompt", shape(prompt_rows)));
        [("decode", shape(decode_rows))].into_iter().chain(prompt).collect()
    }

    pub fn rows(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Batch => self.max_rows,
            Rows::Outputs => self.max_outputs,
        }
    }
}

/// Which elements of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// `(x[i], x[i + n/2])`.
    Half,
    /// `(x[2i], x[2i + 1])`.
    Adjacent,
}

/// A rotary embedding. Angle of pair `i` = `position[component[i]] * inv_freq[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub pairing: RopePairing,
    /// One entry a pair; the rotated part of a head is twice as long.
    pub inv_freq: Vec<f64>,
    /// 0 time, 1 height, 2 width.
    pub component: Vec<u8>,
    /// Factor on sine and cosine (YaRN's attention factor), else 1.
    pub magnitude: f32,
}

/// The steps of one stage for one shape class.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub name: String,
    pub shape: ShapeClass,
    pub buffers: Vec<BufferDecl>,
    pub steps: Vec<Step>,
    /// Size of the work arena that this program needs.
    pub work_bytes: u64,
}

impl Program {
    pub fn buffer(&self, id: BufferId) -> &BufferDecl {
        &self.buffers[id.0 as usize]
    }

    /// Steps that the host takes, in order.
    pub fn host_steps(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().enumerate().filter(|(_, step)| step.op.is_host()).map(|(i, _)| i)
    }

    /// The ranges of steps that a device runs in one go: up to the first host step, between two of them, and from the last to the
    /// end. One more than there are host steps; some may be empty.
    pub fn segments(&self) -> Vec<std::ops::Range<usize>> {
        let mut start = 0;
        let ends = self.host_steps().chain([self.steps.len()]);
        ends.map(|end| std::mem::replace(&mut start, end + 1)..end).collect()
    }

    pub fn input(&self, wanted: impl Fn(InputKind) -> bool) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.input.is_some_and(&wanted)).map(|i| BufferId(i as u32))
    }

    pub fn output(&self, kind: OutputKind) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.output == Some(kind)).map(|i| BufferId(i as u32))
    }

    /// The bytes of the first `rows` rows of a buffer.
    pub fn buffer_slice(&self, id: BufferId, rows: u32) -> Slice {
        let b = self.buffer(id);
        Slice { arena: ArenaKind::Work, offset_bytes: b.offset_bytes, len_bytes: b.bytes(rows) }
    }
}

/// A range of layers on one device: what it holds and what it can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    pub name: String,
    pub weights: Vec<WeightDecl>,
    pub states: Vec<StateDecl>,
    pub ropes: Vec<Rope>,
    pub programs: Vec<Program>,
    pub weights_bytes: u64,
    pub state_bytes: u64,
    /// The largest `work_bytes` of the programs.
    pub work_bytes: u64,
    /// The first so many bytes of the work arena are the last ones of the weights arena. Slots of experts lie there, and buffers of
    /// the program with the most rows: before it runs, the host makes sure that no table names one of those slots. The buffers of
    /// the other programs lie behind.
    pub lent_bytes: u64,
}

impl Stage {
    /// Whether a program has buffers on bytes of slots.
    pub fn borrows(&self, program: usize) -> bool {
        self.programs[program].buffers.iter().any(|b| b.offset_bytes < self.lent_bytes)
    }

    /// Bytes of buffers of all programs, and of those that leave the slots alone, whatever is lent. They are equal where one
    /// program does all.
    pub fn work_parts(&self) -> (u64, u64) {
        let needed = |i: usize, p: &Program| if self.borrows(i) { p.work_bytes } else { p.work_bytes - self.lent_bytes };
        let most = self.programs.iter().map(|p| p.shape.max_rows).max().unwrap_or(0);
        let all = self.programs.iter().enumerate().map(|(i, p)| needed(i, p)).max().unwrap_or(0);
        let few = self.programs.iter().enumerate().filter(|(_, p)| p.shape.max_rows < most);
        (all, few.map(|(i, p)| needed(i, p)).max().unwrap_or(all))
    }

    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.0 as usize]
    }

    pub fn state(&self, id: StateId) -> &StateDecl {
        &self.states[id.0 as usize]
    }

    pub fn rope(&self, id: RopeId) -> &Rope {
        &self.ropes[id.0 as usize]
    }

    pub fn arena_bytes(&self, arena: ArenaKind) -> u64 {
        match arena {
            ArenaKind::Weights => self.weights_bytes,
            ArenaKind::State => self.state_bytes,
            ArenaKind::Work => self.work_bytes,
        }
    }
}
