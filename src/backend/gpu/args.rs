//! Arguments of kernels: one struct each, fixed when a program is prepared. The text of the same structs in WGSL and C is made
//! from the layouts here ([`super::source`]), so the three languages cannot diverge.
//!
//! Fields are 32-bit words. A name that ends in `_at` is an offset: in words into the memory that the field's comment names, or
//! in bytes where it ends in `_at_bytes`; [`NONE`] means that the operand is absent. `_stride` is a distance in words from one
//! row to the next.

use bytemuck::{Pod, Zeroable};

/// An absent operand.
pub const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    U32,
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub ty: FieldType,
    pub doc: &'static str,
}

/// What a kernel's argument struct looks like in every language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgsLayout {
    pub name: &'static str,
    pub fields: &'static [Field],
}

macro_rules! field_type {
    (u32) => {
        FieldType::U32
    };
    (f32) => {
        FieldType::F32
    };
}

macro_rules! args {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $ty:ident,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
            pub struct $name {
                $($(#[doc = $field_doc])* pub $field: $ty,)*
            }

            impl $name {
                pub const LAYOUT: ArgsLayout = ArgsLayout {
                    name: stringify!($name),
                    fields: &[$(Field {
                        name: stringify!($field),
                        ty: field_type!($ty),
                        doc: concat!($($field_doc),*),
                    }),*],
                };
            }

            const _: () = assert!(size_of::<$name>() == $name::LAYOUT.fields.len() * 4);

            impl From<$name> for Args {
                fn from(args: $name) -> Args {
                    Args::new($name::LAYOUT, bytemuck::cast_slice(std::slice::from_ref(&args)))
                }
            }
        )*

        /// Every argument struct.
        pub const LAYOUTS: &[ArgsLayout] = &[$($name::LAYOUT),*];
    };
}

args! {
    /// `out[c] = x[c % x_width]`.
    RepeatArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        x_width: u32, width: u32,
    }
    /// `x[c] += scale * y[c]`; a scale of [`NONE`] is 1.
    AddArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        y_at: u32, y_stride: u32,
        /// work, one float a row, or NONE
        scale_at: u32, scale_stride: u32,
        width: u32,
    }
    /// Row `outputs[y]` of `x` to row `y` of `out`.
    GatherArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        width: u32,
    }
    /// RMS norm of every group on its own; may work in place.
    RmsNormArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        /// columns of a group
        group: u32,
        /// w2, or NONE
        weight_at: u32,
        /// weight i % weight_len multiplies column i
        weight_len: u32,
        eps: f32,
    }
    /// Norm of each head, then its rotation, in place.
    HeadNormRopeArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// words between heads
        head_stride: u32,
        dim: u32,
        /// w2, or NONE
        weight_at: u32,
        eps: f32,
        /// run: [row][cosines, sines] of the pairs, or NONE
        angles_at: u32,
        pairs: u32,
        /// 0: (i, i + pairs), 1: (2 i, 2 i + 1)
        pairing: u32,
    }
    /// `out[d] = mean over s of gates[s * width + d] * normed[s * width + d]`.
    HcGateArgs {
        /// work
        gates_at: u32, gates_stride: u32,
        /// work
        normed_at: u32, normed_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        width: u32, streams: u32,
    }
    /// `x[s * width + d] += weights[s] * y[d]`.
    HcCombineArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        weights_at: u32, weights_stride: u32,
        /// work
        y_at: u32, y_stride: u32,
        width: u32, streams: u32,
    }
    /// Rounds rows to whole numbers for products with quantised weights; see "Rounded activations" in [`gpu`](super).
    QuantiseArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// a multiple of 32
        width: u32,
        /// scratch
        q_at: u32, q_stride: u32,
    }
    /// A matrix times the rows of a window: `out[r][o] = epilogue(scale * W[o] . x[r] + bias[o])`.
    MatArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// scratch: x rounded by `quantise`, or NONE for float activations
        q_at: u32, q_stride: u32,
        /// work; column 0 is that of the first output here
        out_at: u32, out_stride: u32,
        /// input width
        cols: u32,
        /// outputs (rows of the matrix) of this launch
        outs: u32,
        /// word of the run block that counts the window's rows: RUN_ROWS or RUN_OUTPUTS
        rows_at: u32,
        /// bytes of a matrix row
        row_bytes: u32,
        /// w0: first row
        w0_at_bytes: u32,
        /// w1: first row of the second matrix (gated kernels)
        w1_at_bytes: u32,
        /// w2: one factor of the first product, or NONE
        scale_at: u32,
        /// w2: one factor of the second product, or NONE
        up_scale_at: u32,
        /// w2: one float an output, or NONE
        bias_at: u32,
        /// 0 SiLU, 1 GELU (tanh); for gated products
        activation: u32,
        /// scratch: the second product, made before, [row][output], or NONE
        up_at: u32, up_stride: u32,
        /// see EPILOGUE_*
        epilogue: u32,
        epilogue_scale: f32,
        epilogue_factor: f32,
        /// w2: decay factors, one an output
        a_at: u32,
        /// w2: decay offsets, one an output
        dt_at: u32,
        /// 1: out lies in scratch, not in work
        out_in_scratch: u32,
    }
    /// Stores keys and values at `(slot, index)`: `[K|V][kv_head][cell][dim]`.
    KvAppendArgs {
        /// work
        k_at: u32, k_stride: u32,
        /// work
        v_at: u32, v_stride: u32,
        /// state: slot 0
        state_at: u32,
        /// words between slots
        slot_stride: u32,
        cells: u32, kv_heads: u32, dim: u32,
    }
    /// Stores raw indexer keys `[cell][dim]`; a block that becomes complete gets its pooled key, `[cells + block][dim]`.
    IndexAppendArgs {
        /// work
        key_at: u32, key_stride: u32,
        /// state: slot 0
        state_at: u32,
        slot_stride: u32,
        cells: u32, dim: u32, ratio: u32,
        /// w2
        weight_at: u32,
        eps: f32,
        /// run: [row][cosines, sines] at the first token of the block that the row completes
        angles_at: u32,
        pairs: u32, pairing: u32,
    }
    /// `scores[row][block] = sum over heads of max(0, query . pooled key)` for the complete blocks of a row.
    IndexScoresArgs {
        /// work
        query_at: u32, query_stride: u32, head_stride: u32,
        heads: u32, dim: u32,
        /// state: slot 0
        state_at: u32,
        slot_stride: u32,
        cells: u32, ratio: u32,
        /// rows of up to this many complete blocks need no scores
        budget: u32,
        /// first row of the window here
        first_row: u32,
        /// scratch, row `first_row` first
        scores_at: u32, scores_stride: u32,
    }
    /// The best blocks of a row, ascending; ties go to the lower block.
    BlockSelectArgs {
        /// scratch, row `first_row` first
        scores_at: u32, scores_stride: u32,
        /// work: [n, block ids ..., 0 ...]
        out_at: u32, out_stride: u32,
        budget: u32, ratio: u32,
        first_row: u32,
    }
    /// Softmax attention of each head; with more than one split, `attention_merge` finishes.
    AttentionArgs {
        /// work
        q_at: u32, q_stride: u32, q_head_stride: u32,
        /// work
        out_at: u32, out_stride: u32, out_head_stride: u32,
        /// work, or NONE
        gate_at: u32, gate_stride: u32, gate_head_stride: u32,
        /// work: [n, block ids ...], or NONE
        selection_at: u32, selection_stride: u32,
        /// tokens of a block
        ratio: u32,
        /// newest cells that are seen, or NONE
        window: u32,
        heads: u32, kv_heads: u32, dim: u32,
        /// state: slot 0
        state_at: u32,
        slot_stride: u32,
        cells: u32,
        scale: f32,
        /// parts that share the cells of a row
        splits: u32,
        /// scratch: [row][head][split][max, sum, dim accumulators]
        partial_at: u32,
    }
    /// Causal depthwise convolution with SiLU; brings the ring of past inputs up to date.
    CausalConvArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        /// w2: [channel][tap]
        weight_at: u32,
        /// state: slot 0, [ring row][channel]
        state_at: u32,
        slot_stride: u32,
        ring_rows: u32, channels: u32, taps: u32, dilation: u32,
    }
    /// Gated delta rule, token after token; the state is `[version][head][value channel][key channel]`.
    DeltaRuleArgs {
        /// work
        q_at: u32, q_stride: u32, q_head_stride: u32,
        /// work
        k_at: u32, k_stride: u32, k_head_stride: u32,
        /// work
        v_at: u32, v_stride: u32, v_head_stride: u32,
        /// work
        decay_at: u32, decay_stride: u32,
        /// work
        beta_at: u32, beta_stride: u32,
        /// work: what is read from the state, before norm and gate
        out_at: u32, out_stride: u32,
        key_heads: u32, heads: u32, key_dim: u32, value_dim: u32,
        /// state: slot 0
        state_at: u32,
        slot_stride: u32,
        /// value channels of a workgroup
        channels: u32,
    }
    /// `out = rms(out) * norm * gate` for each head, in place.
    DeltaFinishArgs {
        /// work
        gate_at: u32, gate_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        /// w2
        norm_at: u32,
        eps: f32,
        heads: u32, value_dim: u32,
    }
    /// Softmax over the experts, then the best, descending; ties go to the lower.
    RouterArgs {
        /// work
        logits_at: u32, logits_stride: u32,
        /// work
        ids_at: u32, ids_stride: u32,
        /// work
        weights_at: u32, weights_stride: u32,
        experts: u32, used: u32,
        /// 1: weights are divided by their sum
        normalise: u32,
    }
    /// Sorts the choices of a window by expert and cuts each expert's choices into tiles.
    ExpertGroupArgs {
        /// work
        ids_at: u32, ids_stride: u32,
        experts: u32, used: u32,
        /// scratch: choices (row * used + j), sorted by expert
        choices_at: u32,
        /// scratch: [count, then for each tile: expert, first choice, choices]
        tiles_at: u32,
        /// choices of a tile
        tile: u32,
    }
    /// Products of the chosen experts' matrices. A pair is `row * used + j`.
    ExpertArgs {
        /// work; input of a pair: x_at + row * x_stride + j * x_pair_stride
        x_at: u32, x_stride: u32, x_pair_stride: u32,
        /// scratch: the whole row of x rounded by `quantise`, or NONE for float activations
        q_at: u32, q_stride: u32,
        /// out of a pair: out_at + row * out_stride + j * out_pair_stride
        out_at: u32, out_stride: u32, out_pair_stride: u32,
        /// 1: out lies in scratch, not in work
        out_in_scratch: u32,
        /// work
        ids_at: u32, ids_stride: u32,
        used: u32, experts: u32,
        cols: u32, outs: u32,
        row_bytes: u32,
        /// w0, in units of 256 bytes: the first matrix in slot `first_slot`; its first row is `row_offset`
        w0_at_units: u32, row_offset: u32,
        /// w0: the second matrix (gated kernels)
        w1_at_units: u32, up_row_offset: u32,
        /// 256-byte units between slots
        slot_stride_units: u32,
        /// slots of this launch; pairs of other slots are left alone
        first_slot: u32, slots: u32,
        /// state: expert -> slot, NONE for an expert that is not here; NONE: expert e lies in slot e
        table_at: u32,
        /// w2: one factor an expert, or NONE
        scale_at: u32, up_scale_at: u32,
        activation: u32,
        /// scratch: the second product of a pair, made before, [pair][output], or NONE
        up_at: u32,
        /// scratch: results of `expert_group` (tiled kernels)
        choices_at: u32, tiles_at: u32,
        /// choices of a tile
        tile: u32,
    }
    /// `out = sum over j of weights[j] * scale[ids[j]] * products[j]`, in the order of j.
    ExpertSumArgs {
        /// scratch or work: [row][j][width]
        products_at: u32, products_stride: u32,
        /// 1: products lie in scratch, not in work
        products_in_scratch: u32,
        /// work
        ids_at: u32, ids_stride: u32,
        /// work
        weights_at: u32, weights_stride: u32,
        /// work
        out_at: u32, out_stride: u32,
        used: u32, experts: u32, width: u32,
        /// w2: one factor an expert, or NONE
        scale_at: u32,
    }
    /// N-gram injection up to the convolution.
    NgramGateArgs {
        /// work
        x_at: u32, x_stride: u32,
        /// work
        key_at: u32, key_stride: u32,
        /// work
        value_at: u32, value_stride: u32,
        /// work
        gated_at: u32, gated_stride: u32,
        /// work
        normed_at: u32, normed_stride: u32,
        /// w2
        norm_key_at: u32,
        /// w2
        norm_query_at: u32,
        /// w2
        norm_conv_at: u32,
        width: u32, streams: u32,
        eps: f32,
    }
}

/// Most words of any argument struct.
pub const MAX_ARG_WORDS: usize = 40;

/// The arguments of one launch, of any kind.
#[derive(Clone, Copy, PartialEq)]
pub struct Args {
    layout: ArgsLayout,
    words: [u32; MAX_ARG_WORDS],
}

impl Args {
    fn new(layout: ArgsLayout, given: &[u32]) -> Args {
        let mut words = [0; MAX_ARG_WORDS];
        words[..given.len()].copy_from_slice(given);
        Args { layout, words }
    }

    pub fn layout(&self) -> ArgsLayout {
        self.layout
    }

    pub fn words(&self) -> &[u32] {
        &self.words[..self.layout.fields.len()]
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.words())
    }

    /// A field by name, for tests and printing.
    pub fn get(&self, name: &str) -> Option<u32> {
        self.layout.fields.iter().position(|f| f.name == name).map(|i| self.words[i])
    }
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct(self.layout.name);
        for (field, word) in self.layout.fields.iter().zip(self.words()) {
            match field.ty {
                FieldType::U32 if *word == NONE => out.field(field.name, &"none"),
                FieldType::U32 => out.field(field.name, word),
                FieldType::F32 => out.field(field.name, &f32::from_bits(*word)),
            };
        }
        out.finish()
    }
}

/// Numbers that stand for choices in arguments, by the names they have in the kernels.
pub const CONSTANTS: &[(&str, u32)] = &[
    ("NONE", NONE),
    ("EPILOGUE_NONE", 0),
    ("EPILOGUE_SILU", 1),
    ("EPILOGUE_SIGMOID", 2),
    ("EPILOGUE_DECAY", 3),
    ("EPILOGUE_ACCUMULATE", 4),
    ("ACTIVATION_SILU", 0),
    ("ACTIVATION_GELU_TANH", 1),
    ("PAIRING_HALF", 0),
    ("PAIRING_ADJACENT", 1),
];
