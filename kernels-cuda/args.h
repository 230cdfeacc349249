// Made from src/backend/gpu/args.rs by `cargo run --example gpu_args_header`: change that, not this.
#pragma once
#include <stdint.h>

#define STRATA_NONE 4294967295u
#define STRATA_EPILOGUE_NONE 0u
#define STRATA_EPILOGUE_SILU 1u
#define STRATA_EPILOGUE_SIGMOID 2u
#define STRATA_EPILOGUE_DECAY 3u
#define STRATA_EPILOGUE_ACCUMULATE 4u
#define STRATA_ACTIVATION_SILU 0u
#define STRATA_ACTIVATION_GELU_TANH 1u
#define STRATA_PAIRING_HALF 0u
#define STRATA_PAIRING_ADJACENT 1u
#define STRATA_RUN_ROWS 0u
#define STRATA_RUN_OUTPUTS 1u
#define STRATA_RUN_SPANS 2u
#define STRATA_RUN_ROWS_AT 4u
#define STRATA_ROW_WORDS 8u
#define STRATA_ROW_SLOT 0u
#define STRATA_ROW_INDEX 1u
#define STRATA_ROW_STATE_READ 2u
#define STRATA_ROW_STATE_WRITE 3u
#define STRATA_ROW_SPAN 4u
#define STRATA_ROW_IN_SPAN 5u
#define STRATA_SPAN_WORDS 4u
#define STRATA_SPAN_FIRST_ROW 0u
#define STRATA_SPAN_ROWS 1u
#define STRATA_SPAN_SLOT 2u
#define STRATA_SPAN_INDEX 3u

// Window rows that a mat_vec kernel works on at once.
#define STRATA_BATCHES 1, 2, 4, 8

struct RepeatArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t x_width;
    uint32_t width;
};
static_assert(sizeof(RepeatArgs) == 24, "RepeatArgs");

struct AddArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t y_at; // work
    uint32_t y_stride;
    uint32_t scale_at; // work, one float a row, or NONE
    uint32_t scale_stride;
    uint32_t width;
};
static_assert(sizeof(AddArgs) == 28, "AddArgs");

struct GatherArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t width;
};
static_assert(sizeof(GatherArgs) == 20, "GatherArgs");

struct RmsNormArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t group; // columns of a group
    uint32_t weight_at; // w2, or NONE
    uint32_t weight_len; // weight i % weight_len multiplies column i
    float eps;
};
static_assert(sizeof(RmsNormArgs) == 32, "RmsNormArgs");

struct HeadNormRopeArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t head_stride; // words between heads
    uint32_t dim;
    uint32_t weight_at; // w2, or NONE
    float eps;
    uint32_t angles_at; // run: [row][cosines, sines] of the pairs, or NONE
    uint32_t pairs;
    uint32_t pairing; // 0: (i, i + pairs), 1: (2 i, 2 i + 1)
};
static_assert(sizeof(HeadNormRopeArgs) == 36, "HeadNormRopeArgs");

struct HcGateArgs {
    uint32_t gates_at; // work
    uint32_t gates_stride;
    uint32_t normed_at; // work
    uint32_t normed_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t width;
    uint32_t streams;
};
static_assert(sizeof(HcGateArgs) == 32, "HcGateArgs");

struct HcCombineArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t weights_at; // work
    uint32_t weights_stride;
    uint32_t y_at; // work
    uint32_t y_stride;
    uint32_t width;
    uint32_t streams;
};
static_assert(sizeof(HcCombineArgs) == 32, "HcCombineArgs");

struct QuantiseArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t width; // a multiple of 32
    uint32_t q_at; // scratch
    uint32_t q_stride;
};
static_assert(sizeof(QuantiseArgs) == 20, "QuantiseArgs");

struct MatArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t q_at; // scratch: x rounded by `quantise`, or NONE for float activations
    uint32_t q_stride;
    uint32_t out_at; // work; column 0 is that of the first output here
    uint32_t out_stride;
    uint32_t cols; // input width
    uint32_t outs; // outputs (rows of the matrix) of this launch
    uint32_t rows_at; // word of the run block that counts the window's rows: RUN_ROWS or RUN_OUTPUTS
    uint32_t row_bytes; // bytes of a matrix row
    uint32_t w0_at_bytes; // w0: first row
    uint32_t w1_at_bytes; // w1: first row of the second matrix (gated kernels)
    uint32_t scale_at; // w2: one factor of the first product, or NONE
    uint32_t up_scale_at; // w2: one factor of the second product, or NONE
    uint32_t bias_at; // w2: one float an output, or NONE
    uint32_t activation; // 0 SiLU, 1 GELU (tanh); for gated products
    uint32_t up_at; // scratch: the second product, made before, [row][output], or NONE
    uint32_t up_stride;
    uint32_t epilogue; // see EPILOGUE_*
    float epilogue_scale;
    float epilogue_factor;
    uint32_t a_at; // w2: decay factors, one an output
    uint32_t dt_at; // w2: decay offsets, one an output
    uint32_t out_in_scratch; // 1: out lies in scratch, not in work
};
static_assert(sizeof(MatArgs) == 96, "MatArgs");

struct KvAppendArgs {
    uint32_t k_at; // work
    uint32_t k_stride;
    uint32_t v_at; // work
    uint32_t v_stride;
    uint32_t state_at; // state: slot 0
    uint32_t slot_stride; // words between slots
    uint32_t cells;
    uint32_t kv_heads;
    uint32_t dim;
};
static_assert(sizeof(KvAppendArgs) == 36, "KvAppendArgs");

struct IndexAppendArgs {
    uint32_t key_at; // work
    uint32_t key_stride;
    uint32_t state_at; // state: slot 0
    uint32_t slot_stride;
    uint32_t cells;
    uint32_t dim;
    uint32_t ratio;
    uint32_t weight_at; // w2
    float eps;
    uint32_t angles_at; // run: [row][cosines, sines] at the first token of the block that the row completes
    uint32_t pairs;
    uint32_t pairing;
};
static_assert(sizeof(IndexAppendArgs) == 48, "IndexAppendArgs");

struct IndexScoresArgs {
    uint32_t query_at; // work
    uint32_t query_stride;
    uint32_t head_stride;
    uint32_t heads;
    uint32_t dim;
    uint32_t state_at; // state: slot 0
    uint32_t slot_stride;
    uint32_t cells;
    uint32_t ratio;
    uint32_t budget; // rows of up to this many complete blocks need no scores
    uint32_t first_row; // first row of the window here
    uint32_t scores_at; // scratch, row `first_row` first
    uint32_t scores_stride;
};
static_assert(sizeof(IndexScoresArgs) == 52, "IndexScoresArgs");

struct BlockSelectArgs {
    uint32_t scores_at; // scratch, row `first_row` first
    uint32_t scores_stride;
    uint32_t out_at; // work: [n, block ids ..., 0 ...]
    uint32_t out_stride;
    uint32_t budget;
    uint32_t ratio;
    uint32_t first_row;
};
static_assert(sizeof(BlockSelectArgs) == 28, "BlockSelectArgs");

struct AttentionArgs {
    uint32_t q_at; // work
    uint32_t q_stride;
    uint32_t q_head_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t out_head_stride;
    uint32_t gate_at; // work, or NONE
    uint32_t gate_stride;
    uint32_t gate_head_stride;
    uint32_t selection_at; // work: [n, block ids ...], or NONE
    uint32_t selection_stride;
    uint32_t ratio; // tokens of a block
    uint32_t window; // newest cells that are seen, or NONE
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t state_at; // state: slot 0
    uint32_t slot_stride;
    uint32_t cells;
    float scale;
    uint32_t splits; // parts that share the cells of a row
    uint32_t partial_at; // scratch: [row][head][split][max, sum, dim accumulators]
};
static_assert(sizeof(AttentionArgs) == 88, "AttentionArgs");

struct CausalConvArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t weight_at; // w2: [channel][tap]
    uint32_t state_at; // state: slot 0, [ring row][channel]
    uint32_t slot_stride;
    uint32_t ring_rows;
    uint32_t channels;
    uint32_t taps;
    uint32_t dilation;
};
static_assert(sizeof(CausalConvArgs) == 44, "CausalConvArgs");

struct DeltaRuleArgs {
    uint32_t q_at; // work
    uint32_t q_stride;
    uint32_t q_head_stride;
    uint32_t k_at; // work
    uint32_t k_stride;
    uint32_t k_head_stride;
    uint32_t v_at; // work
    uint32_t v_stride;
    uint32_t v_head_stride;
    uint32_t decay_at; // work
    uint32_t decay_stride;
    uint32_t beta_at; // work
    uint32_t beta_stride;
    uint32_t out_at; // work: what is read from the state, before norm and gate
    uint32_t out_stride;
    uint32_t key_heads;
    uint32_t heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t state_at; // state: slot 0
    uint32_t slot_stride;
    uint32_t channels; // value channels of a workgroup
};
static_assert(sizeof(DeltaRuleArgs) == 88, "DeltaRuleArgs");

struct DeltaFinishArgs {
    uint32_t gate_at; // work
    uint32_t gate_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t norm_at; // w2
    float eps;
    uint32_t heads;
    uint32_t value_dim;
};
static_assert(sizeof(DeltaFinishArgs) == 32, "DeltaFinishArgs");

struct RouterArgs {
    uint32_t logits_at; // work
    uint32_t logits_stride;
    uint32_t ids_at; // work
    uint32_t ids_stride;
    uint32_t weights_at; // work
    uint32_t weights_stride;
    uint32_t experts;
    uint32_t used;
    uint32_t normalise; // 1: weights are divided by their sum
};
static_assert(sizeof(RouterArgs) == 36, "RouterArgs");

struct ExpertGroupArgs {
    uint32_t ids_at; // work
    uint32_t ids_stride;
    uint32_t experts;
    uint32_t used;
    uint32_t choices_at; // scratch: choices (row * used + j), sorted by expert
    uint32_t tiles_at; // scratch: [count, then for each tile: expert, first choice, choices]
    uint32_t tile; // choices of a tile
};
static_assert(sizeof(ExpertGroupArgs) == 28, "ExpertGroupArgs");

struct ExpertArgs {
    uint32_t x_at; // work; input of a pair: x_at + row * x_stride + j * x_pair_stride
    uint32_t x_stride;
    uint32_t x_pair_stride;
    uint32_t q_at; // scratch: the whole row of x rounded by `quantise`, or NONE for float activations
    uint32_t q_stride;
    uint32_t out_at; // out of a pair: out_at + row * out_stride + j * out_pair_stride
    uint32_t out_stride;
    uint32_t out_pair_stride;
    uint32_t out_in_scratch; // 1: out lies in scratch, not in work
    uint32_t ids_at; // work
    uint32_t ids_stride;
    uint32_t used;
    uint32_t experts;
    uint32_t cols;
    uint32_t outs;
    uint32_t row_bytes;
    uint32_t w0_at_units; // w0, in units of 256 bytes: the first matrix in slot `first_slot`; its first row is `row_offset`
    uint32_t row_offset;
    uint32_t w1_at_units; // w0: the second matrix (gated kernels)
    uint32_t up_row_offset;
    uint32_t slot_stride_units; // 256-byte units between slots
    uint32_t first_slot; // slots of this launch; pairs of other slots are left alone
    uint32_t slots;
    uint32_t table_at; // state: expert -> slot, NONE for an expert that is not here; NONE: expert e lies in slot e
    uint32_t scale_at; // w2: one factor an expert, or NONE
    uint32_t up_scale_at;
    uint32_t activation;
    uint32_t up_at; // scratch: the second product of a pair, made before, [pair][output], or NONE
    uint32_t choices_at; // scratch: results of `expert_group` (tiled kernels)
    uint32_t tiles_at;
    uint32_t tile; // choices of a tile
};
static_assert(sizeof(ExpertArgs) == 124, "ExpertArgs");

struct ExpertSumArgs {
    uint32_t products_at; // scratch or work: [row][j][width]
    uint32_t products_stride;
    uint32_t products_in_scratch; // 1: products lie in scratch, not in work
    uint32_t ids_at; // work
    uint32_t ids_stride;
    uint32_t weights_at; // work
    uint32_t weights_stride;
    uint32_t out_at; // work
    uint32_t out_stride;
    uint32_t used;
    uint32_t experts;
    uint32_t width;
    uint32_t scale_at; // w2: one factor an expert, or NONE
};
static_assert(sizeof(ExpertSumArgs) == 52, "ExpertSumArgs");

struct NgramGateArgs {
    uint32_t x_at; // work
    uint32_t x_stride;
    uint32_t key_at; // work
    uint32_t key_stride;
    uint32_t value_at; // work
    uint32_t value_stride;
    uint32_t gated_at; // work
    uint32_t gated_stride;
    uint32_t normed_at; // work
    uint32_t normed_stride;
    uint32_t norm_key_at; // w2
    uint32_t norm_query_at; // w2
    uint32_t norm_conv_at; // w2
    uint32_t width;
    uint32_t streams;
    float eps;
};
static_assert(sizeof(NgramGateArgs) == 64, "NgramGateArgs");

// Addresses of the windows that a launch sees; 0 for none.
struct Operands {
    uint64_t run;
    uint64_t w0;
    uint64_t w1;
    uint64_t w2;
    uint64_t state;
    uint64_t work;
    uint64_t scratch;
};

// KERNEL(name, arguments): every kernel is NAME(Operands at, ARGUMENTS args).
#define STRATA_KERNELS(KERNEL) \
    KERNEL(repeat, RepeatArgs) \
    KERNEL(add, AddArgs) \
    KERNEL(gather, GatherArgs) \
    KERNEL(rms_norm, RmsNormArgs) \
    KERNEL(head_norm_rope, HeadNormRopeArgs) \
    KERNEL(hc_gate, HcGateArgs) \
    KERNEL(hc_combine, HcCombineArgs) \
    KERNEL(quantise, QuantiseArgs) \
    KERNEL(mat_vec, MatArgs) \
    KERNEL(mat_mul, MatArgs) \
    KERNEL(kv_append, KvAppendArgs) \
    KERNEL(index_append, IndexAppendArgs) \
    KERNEL(index_scores, IndexScoresArgs) \
    KERNEL(block_select, BlockSelectArgs) \
    KERNEL(attention, AttentionArgs) \
    KERNEL(attention_merge, AttentionArgs) \
    KERNEL(causal_conv, CausalConvArgs) \
    KERNEL(delta_rule, DeltaRuleArgs) \
    KERNEL(delta_finish, DeltaFinishArgs) \
    KERNEL(router, RouterArgs) \
    KERNEL(expert_group, ExpertGroupArgs) \
    KERNEL(expert_vec, ExpertArgs) \
    KERNEL(expert_mul, ExpertArgs) \
    KERNEL(expert_sum, ExpertSumArgs) \
    KERNEL(ngram_gate, NgramGateArgs)
