// Made from src/backend/gpu/args.rs by `cargo run --example gpu_args_header`: change that, not this.
#pragma once

constexpr u32 NONE = 4294967295u;
constexpr u32 EPILOGUE_NONE = 0u;
constexpr u32 EPILOGUE_SILU = 1u;
constexpr u32 EPILOGUE_SIGMOID = 2u;
constexpr u32 EPILOGUE_DECAY = 3u;
constexpr u32 EPILOGUE_ACCUMULATE = 4u;
constexpr u32 ACTIVATION_SILU = 0u;
constexpr u32 ACTIVATION_GELU_TANH = 1u;
constexpr u32 PAIRING_HALF = 0u;
constexpr u32 PAIRING_ADJACENT = 1u;
constexpr u32 RUN_ROWS = 0u;
constexpr u32 RUN_OUTPUTS = 1u;
constexpr u32 RUN_SPANS = 2u;
constexpr u32 RUN_SPANS_AT = 3u;
constexpr u32 RUN_OUTPUTS_AT = 4u;
constexpr u32 RUN_ROWS_AT = 8u;
constexpr u32 ROW_WORDS = 8u;
constexpr u32 ROW_SLOT = 0u;
constexpr u32 ROW_INDEX = 1u;
constexpr u32 ROW_STATE_READ = 2u;
constexpr u32 ROW_STATE_WRITE = 3u;
constexpr u32 ROW_SPAN = 4u;
constexpr u32 ROW_IN_SPAN = 5u;
constexpr u32 SPAN_WORDS = 4u;
constexpr u32 SPAN_FIRST_ROW = 0u;
constexpr u32 SPAN_ROWS = 1u;
constexpr u32 SPAN_SLOT = 2u;
constexpr u32 SPAN_INDEX = 3u;

struct RepeatArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 x_width;
    u32 width;
};
static_assert(sizeof(RepeatArgs) == 24, "RepeatArgs");

struct AddArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 y_at; // work
    u32 y_stride;
    u32 scale_at; // work, one float a row, or NONE
    u32 scale_stride;
    u32 width;
};
static_assert(sizeof(AddArgs) == 28, "AddArgs");

struct GatherArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 width;
};
static_assert(sizeof(GatherArgs) == 20, "GatherArgs");

struct RmsNormArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 group; // columns of a group
    u32 weight_at; // w2, or NONE
    u32 weight_len; // weight i % weight_len multiplies column i
    float eps;
};
static_assert(sizeof(RmsNormArgs) == 32, "RmsNormArgs");

struct HeadNormRopeArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 head_stride; // words between heads
    u32 dim;
    u32 weight_at; // w2, or NONE
    float eps;
    u32 angles_at; // run: [row][cosines, sines] of the pairs, or NONE
    u32 pairs;
    u32 pairing; // 0: (i, i + pairs), 1: (2 i, 2 i + 1)
};
static_assert(sizeof(HeadNormRopeArgs) == 36, "HeadNormRopeArgs");

struct HcGateArgs {
    u32 gates_at; // work
    u32 gates_stride;
    u32 normed_at; // work
    u32 normed_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 width;
    u32 streams;
};
static_assert(sizeof(HcGateArgs) == 32, "HcGateArgs");

struct HcCombineArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 weights_at; // work
    u32 weights_stride;
    u32 y_at; // work
    u32 y_stride;
    u32 width;
    u32 streams;
};
static_assert(sizeof(HcCombineArgs) == 32, "HcCombineArgs");

struct QuantiseArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 width; // a multiple of 32
    u32 q_at; // scratch
    u32 q_stride;
};
static_assert(sizeof(QuantiseArgs) == 20, "QuantiseArgs");

struct MatArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 q_at; // scratch: x rounded by `quantise`, or NONE for float activations
    u32 q_stride;
    u32 out_at; // work; column 0 is that of the first output here
    u32 out_stride;
    u32 cols; // input width
    u32 outs; // outputs (rows of the matrix) of this launch
    u32 rows_at; // word of the run block that counts the window's rows: RUN_ROWS or RUN_OUTPUTS
    u32 row_bytes; // bytes of a matrix row
    u32 w0_at_bytes; // w0: first row
    u32 w1_at_bytes; // w1: first row of the second matrix (gated kernels)
    u32 scale_at; // w2: one factor of the first product, or NONE
    u32 up_scale_at; // w2: one factor of the second product, or NONE
    u32 bias_at; // w2: one float an output, or NONE
    u32 activation; // 0 SiLU, 1 GELU (tanh); for gated products
    u32 up_at; // scratch: the second product, made before, [row][output], or NONE
    u32 up_stride;
    u32 epilogue; // see EPILOGUE_*
    float epilogue_scale;
    float epilogue_factor;
    u32 a_at; // w2: decay factors, one an output
    u32 dt_at; // w2: decay offsets, one an output
    u32 out_in_scratch; // 1: out lies in scratch, not in work
};
static_assert(sizeof(MatArgs) == 96, "MatArgs");

struct KvAppendArgs {
    u32 k_at; // work
    u32 k_stride;
    u32 v_at; // work
    u32 v_stride;
    u32 state_at; // state: slot 0
    u32 slot_stride; // words between slots
    u32 cells;
    u32 kv_heads;
    u32 dim;
};
static_assert(sizeof(KvAppendArgs) == 36, "KvAppendArgs");

struct IndexAppendArgs {
    u32 key_at; // work
    u32 key_stride;
    u32 state_at; // state: slot 0
    u32 slot_stride;
    u32 cells;
    u32 dim;
    u32 ratio;
    u32 weight_at; // w2
    float eps;
    u32 angles_at; // run: [row][cosines, sines] at the first token of the block that the row completes
    u32 pairs;
    u32 pairing;
};
static_assert(sizeof(IndexAppendArgs) == 48, "IndexAppendArgs");

struct IndexScoresArgs {
    u32 query_at; // work
    u32 query_stride;
    u32 head_stride;
    u32 heads;
    u32 dim;
    u32 state_at; // state: slot 0
    u32 slot_stride;
    u32 cells;
    u32 ratio;
    u32 budget; // rows of up to this many complete blocks need no scores
    u32 first_row; // first row of the window here
    u32 scores_at; // scratch, row `first_row` first
    u32 scores_stride;
};
static_assert(sizeof(IndexScoresArgs) == 52, "IndexScoresArgs");

struct BlockSelectArgs {
    u32 scores_at; // scratch, row `first_row` first
    u32 scores_stride;
    u32 out_at; // work: [n, block ids ..., 0 ...]
    u32 out_stride;
    u32 budget;
    u32 ratio;
    u32 first_row;
};
static_assert(sizeof(BlockSelectArgs) == 28, "BlockSelectArgs");

struct AttentionArgs {
    u32 q_at; // work
    u32 q_stride;
    u32 q_head_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 out_head_stride;
    u32 gate_at; // work, or NONE
    u32 gate_stride;
    u32 gate_head_stride;
    u32 selection_at; // work: [n, block ids ...], or NONE
    u32 selection_stride;
    u32 ratio; // tokens of a block
    u32 window; // newest cells that are seen, or NONE
    u32 heads;
    u32 kv_heads;
    u32 dim;
    u32 state_at; // state: slot 0
    u32 slot_stride;
    u32 cells;
    float scale;
    u32 splits; // parts that share the cells of a row
    u32 partial_at; // scratch: [row][head][split][max, sum, dim accumulators]
};
static_assert(sizeof(AttentionArgs) == 88, "AttentionArgs");

struct CausalConvArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 weight_at; // w2: [channel][tap]
    u32 state_at; // state: slot 0, [ring row][channel]
    u32 slot_stride;
    u32 ring_rows;
    u32 channels;
    u32 taps;
    u32 dilation;
};
static_assert(sizeof(CausalConvArgs) == 44, "CausalConvArgs");

struct DeltaRuleArgs {
    u32 q_at; // work
    u32 q_stride;
    u32 q_head_stride;
    u32 k_at; // work
    u32 k_stride;
    u32 k_head_stride;
    u32 v_at; // work
    u32 v_stride;
    u32 v_head_stride;
    u32 decay_at; // work
    u32 decay_stride;
    u32 beta_at; // work
    u32 beta_stride;
    u32 out_at; // work: what is read from the state, before norm and gate
    u32 out_stride;
    u32 key_heads;
    u32 heads;
    u32 key_dim;
    u32 value_dim;
    u32 state_at; // state: slot 0
    u32 slot_stride;
    u32 channels; // value channels of a workgroup
};
static_assert(sizeof(DeltaRuleArgs) == 88, "DeltaRuleArgs");

struct DeltaFinishArgs {
    u32 gate_at; // work
    u32 gate_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 norm_at; // w2
    float eps;
    u32 heads;
    u32 value_dim;
};
static_assert(sizeof(DeltaFinishArgs) == 32, "DeltaFinishArgs");

struct RouterArgs {
    u32 logits_at; // work
    u32 logits_stride;
    u32 ids_at; // work
    u32 ids_stride;
    u32 weights_at; // work
    u32 weights_stride;
    u32 experts;
    u32 used;
    u32 normalise; // 1: weights are divided by their sum
};
static_assert(sizeof(RouterArgs) == 36, "RouterArgs");

struct ExpertGroupArgs {
    u32 ids_at; // work
    u32 ids_stride;
    u32 experts;
    u32 used;
    u32 choices_at; // scratch: choices (row * used + j), sorted by expert
    u32 tiles_at; // scratch: [count, then for each tile: expert, first choice, choices]
    u32 tile; // choices of a tile
};
static_assert(sizeof(ExpertGroupArgs) == 28, "ExpertGroupArgs");

struct ExpertArgs {
    u32 x_at; // work; input of a pair: x_at + row * x_stride + j * x_pair_stride
    u32 x_stride;
    u32 x_pair_stride;
    u32 q_at; // scratch: the whole row of x rounded by `quantise`, or NONE for float activations
    u32 q_stride;
    u32 out_at; // out of a pair: out_at + row * out_stride + j * out_pair_stride
    u32 out_stride;
    u32 out_pair_stride;
    u32 out_in_scratch; // 1: out lies in scratch, not in work
    u32 ids_at; // work
    u32 ids_stride;
    u32 used;
    u32 experts;
    u32 cols;
    u32 outs;
    u32 row_bytes;
    u32 w0_at_units; // w0, in units of 256 bytes: the first matrix in slot `first_slot`; its first row is `row_offset`
    u32 row_offset;
    u32 w1_at_units; // w0: the second matrix (gated kernels)
    u32 up_row_offset;
    u32 slot_stride_units; // 256-byte units between slots
    u32 first_slot; // slots of this launch; pairs of other slots are left alone
    u32 slots;
    u32 table_at; // state: expert -> slot, NONE for an expert that is not here; NONE: expert e lies in slot e
    u32 scale_at; // w2: one factor an expert, or NONE
    u32 up_scale_at;
    u32 activation;
    u32 up_at; // scratch: the second product of a pair, made before, [pair][output], or NONE
    u32 choices_at; // scratch: results of `expert_group` (tiled kernels)
    u32 tiles_at;
    u32 tile; // choices of a tile
};
static_assert(sizeof(ExpertArgs) == 124, "ExpertArgs");

struct ExpertSumArgs {
    u32 products_at; // scratch or work: [row][j][width]
    u32 products_stride;
    u32 products_in_scratch; // 1: products lie in scratch, not in work
    u32 ids_at; // work
    u32 ids_stride;
    u32 weights_at; // work
    u32 weights_stride;
    u32 out_at; // work
    u32 out_stride;
    u32 used;
    u32 experts;
    u32 width;
    u32 scale_at; // w2: one factor an expert, or NONE
};
static_assert(sizeof(ExpertSumArgs) == 52, "ExpertSumArgs");

struct NgramGateArgs {
    u32 x_at; // work
    u32 x_stride;
    u32 key_at; // work
    u32 key_stride;
    u32 value_at; // work
    u32 value_stride;
    u32 gated_at; // work
    u32 gated_stride;
    u32 normed_at; // work
    u32 normed_stride;
    u32 norm_key_at; // w2
    u32 norm_query_at; // w2
    u32 norm_conv_at; // w2
    u32 width;
    u32 streams;
    float eps;
};
static_assert(sizeof(NgramGateArgs) == 64, "NgramGateArgs");

// Addresses of the windows that a launch sees; 0 for none.
struct Operands {
    u64 run;
    u64 w0;
    u64 w1;
    u64 w2;
    u64 state;
    u64 work;
    u64 scratch;
};
