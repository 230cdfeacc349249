// Products of prompts have the same bits on every unit of cards: products of four bytes, NVIDIA's tensor cores, the matrix
// instructions of RDNA 3 and RDNA 4. The units' instructions are simulated lane by lane (kernels-cuda/prelude_host.h).
//
//   tiles_test
#include "bench.h"

#include "../../kernels-cuda/run.h"
#include "../../kernels-cuda/ops/rowwise.h"
#include "../../kernels-cuda/ops/quantise.h"
#include "../../kernels-cuda/products/matrix.h"

extern "C" {
const simt::Kernel* simgpu_find(const char* name);
int simgpu_launch(const simt::Kernel*, const SimgpuLaunch*);
}

// Formats with an offset, with a scale for 16 weights and for 32, and with signs from a codebook.
#define TILE_FORMATS(X) X(q8_0, Q8_0, 32, 34) X(q4_k, Q4_K, 256, 144) X(q6_k, Q6_K, 256, 210) X(iq2_xs, IQ2_XS, 256, 74)

#define TILE_KERNELS(suffix, F, unit, UNIT)                                                         \
    KERNEL(mat_mul_##suffix##_##unit, MatArgs) { mat_mul<F, 1, UNIT>(at, a); }                      \
    KERNEL(mat_mul_gated_##suffix##_##unit, MatArgs) { mat_mul<F, 2, UNIT>(at, a); }
#define FORMAT_KERNELS(suffix, F, len, bytes)              \
    TILE_KERNELS(suffix, F, dot, DotUnit)                  \
    TILE_KERNELS(suffix, F, mma, MmaUnit)                  \
    TILE_KERNELS(suffix, F, wmma_gfx11, WmmaGfx11Unit)     \
    TILE_KERNELS(suffix, F, wmma_gfx12, WmmaGfx12Unit)
TILE_FORMATS(FORMAT_KERNELS)

namespace {

const char* const UNIT_NAMES[] = {"dot", "mma", "wmma_gfx11", "wmma_gfx12"};

/// Products of more rows and outputs than a tile has, with every unit.
template <class F>
void compare_units(const std::string& suffix, u32 block_len, u32 block_bytes, bool gated) {
    const u32 cols = std::max(block_len, 32u) * 3, outs = 70, rows = 37;
    const Matrix gate = random_matrix<F>(outs, cols, block_len, block_bytes), up = random_matrix<F>(outs, cols, block_len, block_bytes);
    Bench b(rows);
    MatArgs a{};
    a.x_at = b.work.add(noise(size_t{rows} * cols)), a.x_stride = cols;
    a.q_at = quantise_rows(b, a.x_at, rows, cols, cols), a.q_stride = cols / 32 * ROUNDED_WORDS;
    a.out_stride = outs, a.cols = cols, a.outs = outs, a.rows_at = RUN_ROWS, a.row_bytes = gate.row_bytes;
    b.w0.add(gate.bytes), b.w1.add(up.bytes);
    a.w1_at_bytes = gated ? 0 : NONE, a.scale_at = a.up_scale_at = a.up_at = a.a_at = a.dt_at = a.bias_at = NONE;
    std::vector<u32> first;
    for (const std::string unit : UNIT_NAMES) {
        a.out_at = b.work.room(size_t{rows} * outs);
        b.launch(std::string("mat_mul_") + (gated ? "gated_" : "") + suffix + "_" + unit, a, (outs + 63) / 64, (rows + 31) / 32);
        const std::vector<u32> bits(b.work.words.begin() + a.out_at, b.work.words.begin() + a.out_at + rows * outs);
        if (first.empty()) first = bits;
        for (size_t i = 0; i < bits.size(); i++) expect(suffix + " with " + unit, i, bits[i], first[i], 0);
        for (u32 word : bits) expect(suffix + " with " + unit + " is a number", 0, std::isfinite(bits_to_float(word)), 1, 0);
    }
}

}  // namespace

int main() {
    find_kernel = simgpu_find;
    run_kernel = simgpu_launch;
    for (const auto& [width, order] : {std::pair<unsigned, int>{32, 0}, {64, 1}}) {
        wave = width;
        reversed = order;
#define FORMAT(suffix, F, len, bytes) \
    for (bool gated : {false, true}) compare_units<F>(#suffix, len, bytes, gated);
        TILE_FORMATS(FORMAT)
    }
    printf("%zu numbers compared, %d of them wrong\n", compared, failures);
    return failures ? 1 : 0;
}
