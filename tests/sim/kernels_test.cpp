// Kernels against plain arithmetic in double precision, on waves of 32 and 64 lanes, with threads in both orders.
//
//   kernels_test FOLDER [UNIT]    the folder of tests/sim/build; one unit of kernels-cuda/units, or all
#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "bench.h"

namespace {

double dot(const Matrix& m, u32 row, const float* x, double* size) {
    double sum = 0;
    *size = 0;
    for (u32 i = 0; i < m.cols; i++) {
        sum += m.values[size_t{row} * m.cols + i] * x[i];
        *size += std::fabs(m.values[size_t{row} * m.cols + i] * x[i]);
    }
    return sum;
}

double silu_of(double x) { return x / (1 + std::exp(-x)); }

/// Products of all shapes of one format.
template <class F>
void products(const std::string& suffix, u32 block_len, u32 block_bytes, u32 cols) {
    // Rounded activations have 15 bits for the largest of 32.
    const double precision = F::FLOATS ? 2e-6 : 1e-4;
    const u32 outs = 70;
    const Matrix gate = random_matrix<F>(outs, cols, block_len, block_bytes), up = random_matrix<F>(outs, cols, block_len, block_bytes);
    for (u32 rows : {1u, 3u, 8u, 37u})
        for (bool gated : {false, true}) {
            Bench b(rows);
            const Floats x = noise(size_t{rows} * cols), bias = noise(outs);
            MatArgs a{};
            a.x_at = b.work.add(x), a.x_stride = cols;
            a.q_at = F::FLOATS ? NONE : quantise_rows(b, a.x_at, rows, cols, cols);
            a.q_stride = cols / 32 * ROUNDED_WORDS;
            a.out_at = b.work.room(size_t{rows} * outs), a.out_stride = outs;
            a.cols = cols, a.outs = outs, a.rows_at = RUN_ROWS, a.row_bytes = gate.row_bytes;
            b.w0.add(gate.bytes), b.w1.add(up.bytes);
            a.w0_at_bytes = 0, a.w1_at_bytes = gated ? 0 : NONE;
            a.scale_at = a.up_scale_at = a.up_at = a.a_at = a.dt_at = NONE;
            a.bias_at = gated ? NONE : b.w2.add(bias);
            if (rows > 8) b.launch(std::string("mat_mul_") + (gated ? "gated_" : "") + suffix, a, (outs + 63) / 64, (rows + 31) / 32);
            else b.launch("mat_vec_" + suffix + (rows == 1 ? "_b1" : rows <= 4 ? "_b4" : "_b8"), a, (outs + 3) / 4);
            for (u32 row = 0; row < rows; row++)
                for (u32 o = 0; o < outs; o++) {
                    double size, up_size;
                    const double g = dot(gate, o, &x[size_t{row} * cols], &size), u = dot(up, o, &x[size_t{row} * cols], &up_size);
                    const double want = gated ? silu_of(g) * u : g + bias[o];
                    const double bound = precision * (gated ? 2 * (size * (std::fabs(u) + up_size) + up_size) : size);
                    expect(suffix + (gated ? " gated" : ""), size_t{row} * outs + o, b.work.floats(a.out_at)[row * outs + o], want, bound + 1e-6);
                }
        }
}

/// Experts found through a table, one of them elsewhere.
template <class F>
void experts(const std::string& suffix, u32 block_len, u32 block_bytes) {
    const u32 cols = std::max(block_len * 2, 96u), outs = 66, count = 5, used = 2, slots[count] = {2, NONE, 0, 1, 3};
    std::vector<Matrix> matrices;
    for (u32 e = 0; e < count; e++) matrices.push_back(random_matrix<F>(outs, cols, block_len, block_bytes));
    const u32 units = (outs * matrices[0].row_bytes + 255) / 256;
    for (u32 rows : {1u, 29u})
        for (bool each : {false, true}) {  // every choice has its own input, or all the row's
            Bench b(rows);
            const u32 width = each ? cols * used : cols;
            const Floats x = noise(size_t{rows} * width);
            std::vector<u32> ids(size_t{rows} * used);
            for (u32 i = 0; i < ids.size(); i++) ids[i] = (i * 7 + i / 3) % count;
            std::vector<u8> slab(size_t{units} * 256 * 4);
            for (u32 e = 0; e < count; e++)
                if (slots[e] != NONE) std::copy(matrices[e].bytes.begin(), matrices[e].bytes.end(), slab.begin() + slots[e] * units * 256);
            ExpertArgs a{};
            a.x_at = b.work.add(x), a.x_stride = width, a.x_pair_stride = each ? cols : 0;
            a.q_at = F::FLOATS ? NONE : quantise_rows(b, a.x_at, rows, width, width);
            a.q_stride = width / 32 * ROUNDED_WORDS;
            a.out_at = b.work.room(size_t{rows} * used * outs), a.out_stride = used * outs, a.out_pair_stride = outs;
            a.ids_at = b.work.add(ids), a.ids_stride = used, a.used = used, a.experts = count;
            a.cols = cols, a.outs = outs, a.row_bytes = matrices[0].row_bytes;
            b.w0.add(slab);
            a.w1_at_units = NONE, a.slot_stride_units = units, a.first_slot = 0, a.slots = 4;
            a.table_at = b.state.add(slots, sizeof slots), a.scale_at = a.up_scale_at = a.up_at = NONE;
            ExpertGroupArgs g{};
            g.ids_at = a.ids_at, g.ids_stride = used, g.experts = count, g.used = used, g.tile = 32;
            g.choices_at = a.choices_at = b.scratch.room(ids.size()), g.tiles_at = a.tiles_at = b.scratch.room(1 + 3 * (ids.size() + count));
            b.launch("expert_group", g, 1);
            if (rows == 1) b.launch("expert_vec_" + suffix, a, (outs + 3) / 4, rows * used);
            else b.launch("expert_mul_" + suffix, a, (outs + 63) / 64, static_cast<u32>(ids.size()) / 32 + count);
            for (u32 pair = 0; pair < ids.size(); pair++)
                for (u32 o = 0; o < outs; o++) {
                    const float got = b.work.floats(a.out_at)[pair * outs + o];
                    if (slots[ids[pair]] == NONE) {
                        if (got == got) expect(suffix + " expert elsewhere", pair, got, NAN, 0);
                        continue;
                    }
                    double size;
                    const float* input = &x[size_t{pair / used} * width + (each ? pair % used * cols : 0)];
                    const double want = dot(matrices[ids[pair]], o, input, &size);
                    expect(suffix + " expert", pair * outs + o, got, want, 1e-4 * size + 1e-6);
                }
        }
}

/// A block of 32 by the sequential code of src/quant/legacy.rs.
std::vector<u8> encode_block(const std::string& format, const float* x) {
    std::vector<u8> bytes(format == "q8_0" ? 34 : 18);
    auto inverse_of = [](float d) { return std::isfinite(1.0f / d) ? 1.0f / d : 0.0f; };
    float d = 0.0f;
    if (format == "q8_0") {
        for (u32 i = 0; i < 32; i++) d = std::fmax(std::fabs(x[i]), d);
        d /= 127.0f;
        for (u32 i = 0; i < 32; i++) bytes[2 + i] = static_cast<u8>(static_cast<i8>(std::round(x[i] * inverse_of(d))));
    } else {
        for (u32 i = 0; i < 32; i++)
            if (std::fabs(x[i]) > std::fabs(d)) d = x[i];
        d /= -8.0f;
        auto code = [&](u32 i) { return static_cast<u32>(std::fmin(std::fmax(x[i] * inverse_of(d) + 8.5f, 0.0f), 15.0f)); };
        for (u32 i = 0; i < 16; i++) bytes[2 + i] = static_cast<u8>(code(i) | code(i + 16) << 4);
    }
    const u16 scale = float_to_half(d);
    std::memcpy(bytes.data(), &scale, 2);
    return bytes;
}

/// How a cell of a head lies in the cache: the formats of keys and values.
struct CacheKind {
    const char *name, *keys, *values;
};
const CacheKind CACHE_KINDS[] = {{"f32", "f32", "f32"}, {"f16", "f16", "f16"}, {"int8", "q8_0", "q8_0"}, {"k8v4", "q8_0", "q4_0"}, {"q4_0", "q4_0", "q4_0"}};

/// Appends a cell of `dim` elements; `kept` is what they are in the cache.
void add_cell(std::vector<u8>* bytes, const std::string& format, const float* x, u32 dim, float* kept) {
    auto add = [&](const void* from, size_t n) { bytes->insert(bytes->end(), static_cast<const u8*>(from), static_cast<const u8*>(from) + n); };
    for (u32 i = 0; i < dim; i += format[0] == 'q' ? 32 : 1) {
        if (format == "f32") {
            add(&x[i], 4), kept[i] = x[i];
        } else if (format == "f16") {
            const u16 half = float_to_half(x[i]);
            add(&half, 2), kept[i] = half_to_float(half);
        } else {
            float padded[32] = {};
            std::copy(x + i, x + std::min(i + 32, dim), padded);
            const std::vector<u8> block = encode_block(format, padded);
            add(block.data(), block.size());
            for (u32 j = 0; j < 32 && i + j < dim; j++) {
                const Octet o = format == "q8_0" ? Q8_0::octet(block.data(), j / 8) : Q4_0::octet(block.data(), j / 8);
                kept[i + j] = o.scale * static_cast<i8>(o.q[j / 4 % 2] >> (8 * (j % 4)));
            }
        }
    }
}

/// The cache's bytes for `values`, `[K|V][kv_head][cell][dim]`, which become what the cache keeps of them.
std::vector<u8> encode_cache(const CacheKind& kind, u32 dim, Floats* values) {
    std::vector<u8> bytes;
    for (size_t i = 0; i < values->size(); i += dim)
        add_cell(&bytes, i < values->size() / 2 ? kind.keys : kind.values, &(*values)[i], dim, &(*values)[i]);
    return bytes;
}

void keys_and_values_are_stored_like_blocks_of_weights() {
    const u32 kv_heads = 3, cells = 8, rows = 4, index = 2;
    for (const CacheKind& kind : CACHE_KINDS)
        for (u32 dim : {20u, 64u, 80u}) {
            Bench b(rows, index);
            const u32 width = kv_heads * dim, padded = kv_heads * (kind.keys[0] == 'q' ? (dim + 31) / 32 * 32 : dim);
            Floats k = noise(rows * width), v = noise(rows * width);
            // Blocks of zeros, of equal magnitudes, of tiny numbers, and one with what is no number.
            std::fill(k.begin(), k.begin() + 32, 0.0f);
            for (u32 i = 0; i < 20; i++) v[i] = i % 3 ? -0.5f : 0.5f, k[width + i] = 1e-42f, v[width + i] *= 1e-30f;
            // Halves of a step of int8.
            for (u32 i = 0; i < 20; i++) k[3 * width + i] = v[3 * width + i] = i ? static_cast<float>(i) - 9.5f : -127.0f;
            if (kind.keys[0] == 'q') k[2 * width + 3] = NAN, v[2 * width + 3] = NAN;
            Floats all(2 * kv_heads * cells * dim);
            for (u32 row = 0; row < rows; row++)
                for (u32 i = 0; i < width; i++) {
                    const size_t cell = size_t{i / dim} * cells + index + row;
                    all[cell * dim + i % dim] = k[row * width + i];
                    all[(size_t{kv_heads} * cells + cell) * dim + i % dim] = v[row * width + i];
                }
            const std::vector<u8> want = encode_cache(kind, dim, &all);
            KvAppendArgs a{};
            a.k_at = b.work.add(k), a.k_stride = width, a.v_at = b.work.add(v), a.v_stride = width;
            a.state_at = b.state.add(std::vector<u8>(want.size(), 0xee)), a.cells = cells, a.kv_heads = kv_heads, a.dim = dim;
            b.launch(std::string("kv_append_") + kind.name, a, (padded + 255) / 256, rows);
            const u8* got = reinterpret_cast<const u8*>(b.state.words.data() + a.state_at);
            // Bytes of a cell of keys and of values.
            Floats ignored(dim);
            std::vector<u8> key, value;
            add_cell(&key, kind.keys, ignored.data(), dim, ignored.data()), add_cell(&value, kind.values, ignored.data(), dim, ignored.data());
            for (size_t i = 0; i < want.size(); i++) {
                const size_t keys = key.size() * cells * kv_heads, cell = (i < keys ? i / key.size() : (i - keys) / value.size()) % cells;
                const bool written = cell >= index && cell < index + rows;
                expect(std::string("cache ") + kind.name, i, got[i], written ? want[i] : 0xee, 0);
            }
        }
}

void attention_sees_its_cells(u32 dim) {
    const u32 heads = 4, kv_heads = 2, cells = 64, rows = 3, index = 40, ratio = 4;
    for (u32 kind = 0; kind < 4; kind++)  // all cells, a window, chosen blocks, splits
        for (const CacheKind& in : CACHE_KINDS) {
            Bench b(rows, index);
            const Floats q = noise(rows * heads * dim), gate = noise(rows * heads * dim);
            Floats cache = noise(2 * kv_heads * cells * dim);
            b.state.add(encode_cache(in, dim, &cache));
            AttentionArgs a{};
            a.q_at = b.work.add(q), a.q_stride = heads * dim, a.q_head_stride = dim;
            a.out_at = b.work.room(q.size()), a.out_stride = heads * dim, a.out_head_stride = dim;
            a.gate_at = b.work.add(gate), a.gate_stride = heads * dim, a.gate_head_stride = dim;
            const std::vector<u32> selection = {3, 1, 5, 9, 2, 0, 2, 0, 1, 7, 0, 0};
            a.selection_at = kind == 2 ? b.work.add(selection) : NONE, a.selection_stride = 4, a.ratio = ratio;
            a.window = kind == 1 ? 9 : NONE, a.heads = heads, a.kv_heads = kv_heads, a.dim = dim, a.cells = cells;
            a.scale = 0.3f, a.splits = kind == 3 ? 5 : 1;
            a.partial_at = kind == 3 ? b.scratch.room(rows * heads * 5 * (dim + 2)) : NONE;
            b.launch(std::string("attention_") + in.name, a, heads, rows, a.splits);
            if (kind == 3) b.launch("attention_merge", a, heads, rows);
            for (u32 row = 0; row < rows; row++)
                for (u32 head = 0; head < heads; head++) {
                    std::vector<u32> seen;
                    const u32 end = index + row + 1;
                    for (u32 cell = 0; cell < end; cell++) {
                        const u32* chosen = &selection[row * 4];
                        const bool block = std::count(chosen + 1, chosen + 1 + chosen[0], cell / ratio) || cell >= end / ratio * ratio;
                        if ((kind != 1 || cell + 9 >= end) && (kind != 2 || block)) seen.push_back(cell);
                    }
                    auto at = [&](u32 side, u32 cell, u32 i) { return double{cache[((side * kv_heads + head / 2) * cells + cell) * dim + i]}; };
                    std::vector<double> weights;
                    double sum = 0;
                    for (u32 cell : seen) {
                        double score = 0;
                        for (u32 i = 0; i < dim; i++) score += q[(row * heads + head) * dim + i] * at(0, cell, i);
                        weights.push_back(std::exp(score * 0.3f));
                        sum += weights.back();
                    }
                    for (u32 i = 0; i < dim; i++) {
                        double value = 0;
                        for (size_t c = 0; c < seen.size(); c++) value += weights[c] / sum * at(1, seen[c], i);
                        const size_t place = (row * heads + head) * dim + i;
                        expect("attention", place, b.work.floats(a.out_at)[place], value / (1 + std::exp(-gate[place])), 2e-6);
                    }
                }
        }
}

/// Versions of the state that rows read and write: `versions[i]` before row `i`, `versions[i + 1]` after it.
std::vector<std::vector<u32>> ways_through_versions(u32 rows) {
    std::vector<std::vector<u32>> ways(5, std::vector<u32>(rows + 1, 0));
    for (u32 i = 0; i <= rows; i++) {
        ways[1][i] = i % 4;
        ways[2][i] = i < rows / 2 ? 2 : i < rows - 1 ? 1 : 3;
        ways[3][i] = i == 0 ? 3 : 1;
        ways[4][i] = i < 3 ? i : 3;
    }
    return ways;
}

/// `kernel` works on `channels` value channels at once.
void delta_rule_follows_the_recurrence(const char* kernel, u32 channels, u32 key_dim, u32 value_dim, u32 rows) {
    const u32 key_heads = 2, heads = 4;
    for (const auto& versions : ways_through_versions(rows)) {
        Bench b(rows, 0, versions);
        const Floats q = noise(rows * key_heads * key_dim), k = noise(rows * key_heads * key_dim), v = noise(rows * heads * value_dim);
        Floats decay = noise(rows * heads), beta = noise(rows * heads), start = noise(4 * heads * value_dim * key_dim);
        for (auto& d : decay) d = -std::fabs(d) * std::fabs(d) * std::fabs(d) * 4;
        for (auto& x : beta) x = std::fabs(x);
        DeltaRuleArgs a{};
        a.q_at = b.work.add(q), a.q_stride = key_heads * key_dim, a.q_head_stride = key_dim;
        a.k_at = b.work.add(k), a.k_stride = key_heads * key_dim, a.k_head_stride = key_dim;
        a.v_at = b.work.add(v), a.v_stride = heads * value_dim, a.v_head_stride = value_dim;
        a.decay_at = b.work.add(decay), a.decay_stride = heads, a.beta_at = b.work.add(beta), a.beta_stride = heads;
        a.out_at = b.work.room(rows * heads * value_dim), a.out_stride = heads * value_dim;
        a.key_heads = key_heads, a.heads = heads, a.key_dim = key_dim, a.value_dim = value_dim, a.channels = channels;
        a.state_at = b.state.add(start);
        b.launch(kernel, a, heads * ((value_dim + channels - 1) / channels));
        std::vector<double> states(start.begin(), start.end());
        for (u32 row = 0; row < rows; row++)
            for (u32 head = 0; head < heads; head++) {
                const float* qh = &q[(row * key_heads + head % key_heads) * key_dim];
                const float* kh = &k[(row * key_heads + head % key_heads) * key_dim];
                const double qn = std::sqrt(std::inner_product(qh, qh + key_dim, qh, 1e-6)) * std::sqrt(static_cast<double>(key_dim));
                const double kn = std::sqrt(std::inner_product(kh, kh + key_dim, kh, 1e-6));
                for (u32 c = 0; c < value_dim; c++) {
                    auto state = [&](u32 version) { return &states[((version * heads + head) * value_dim + c) * key_dim]; };
                    std::vector<double> s(state(versions[row]), state(versions[row]) + key_dim);
                    double memory = 0, read = 0;
                    for (u32 i = 0; i < key_dim; i++) s[i] *= std::exp(double{decay[row * heads + head]}), memory += s[i] * kh[i] / kn;
                    const double correction = (v[(row * heads + head) * value_dim + c] - memory) * beta[row * heads + head];
                    for (u32 i = 0; i < key_dim; i++) s[i] += kh[i] / kn * correction, read += s[i] * qh[i] / qn;
                    std::copy(s.begin(), s.end(), state(versions[row + 1]));
                    const size_t place = (row * heads + head) * value_dim + c;
                    expect(kernel, place, b.work.floats(a.out_at)[place], read, 1e-5);
                }
            }
        const size_t len = heads * value_dim * key_dim;
        for (u32 version = 0; version < 4; version++)
            for (size_t i = 0; i < len; i++)
                expect(std::string(kernel) + " state", version * len + i, b.state.floats(0)[version * len + i], states[version * len + i], 1e-5);
    }
}

void blocks_and_experts_are_chosen_like_a_sort() {
    for (u32 round = 0; round < 6; round++) {
        const u32 blocks = 300, budget = round == 0 ? 300 : 37, ratio = 4;
        Bench b(1, blocks * ratio - 1);
        std::vector<float> scores(blocks);
        for (u32 i = 0; i < blocks; i++) scores[i] = round < 3 ? static_cast<float>(generator() % 20) : noise(1)[0] + 1.0f;
        if (round == 2) std::fill(scores.begin(), scores.end(), 0.0f);
        BlockSelectArgs a{};
        a.scores_at = b.scratch.add(scores), a.scores_stride = blocks, a.out_at = b.work.room(budget + 1), a.out_stride = budget + 1;
        a.budget = budget, a.ratio = ratio;
        b.launch("block_select", a, 1);
        std::vector<u32> order(blocks);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](u32 p, u32 q) { return scores[p] > scores[q]; });
        order.resize(budget);
        std::sort(order.begin(), order.end());
        const u32* got = b.work.words.data() + a.out_at;
        expect("number of blocks", round, got[0], budget, 0);
        for (u32 i = 0; i < budget; i++) expect("block", i, got[1 + i], order[i], 0);

        const u32 experts = 150, used = 9;
        Bench r(1);
        Floats logits = noise(experts);
        if (round % 2) for (auto& l : logits) l = std::round(l * 3);
        RouterArgs e{};
        e.logits_at = r.work.add(logits), e.logits_stride = experts, e.ids_at = r.work.room(used), e.ids_stride = used;
        e.weights_at = r.work.room(used), e.weights_stride = used, e.experts = experts, e.used = used, e.normalise = 1;
        r.launch("router", e, 1);
        std::vector<u32> best(experts);
        std::iota(best.begin(), best.end(), 0);
        std::stable_sort(best.begin(), best.end(), [&](u32 p, u32 q) { return logits[p] > logits[q]; });
        double sum = 0;
        for (u32 j = 0; j < used; j++) sum += std::exp(logits[best[j]]);
        for (u32 j = 0; j < used; j++) {
            expect("expert", j, r.work.words[e.ids_at + j], best[j], 0);
            expect("expert weight", j, r.work.floats(e.weights_at)[j], std::exp(logits[best[j]]) / sum, 1e-6);
        }
    }
}

void functions_are_close() {
    for (double x = -103; x < 88; x += 0.37) {
        expect("exp", static_cast<size_t>(x + 200), exp_float(static_cast<float>(x)) / std::exp(double{static_cast<float>(x)}), 1, x < -87 ? 0.3 : 2e-7);
        const double y = std::fabs(x) / 4;
        expect("log1p", static_cast<size_t>(y), log1p_float(static_cast<float>(y)), std::log1p(double{static_cast<float>(y)}), 4e-7 * (1 + std::log1p(y)));
        expect("tanh", static_cast<size_t>(y), tanh_float(static_cast<float>(x / 20)), std::tanh(double{static_cast<float>(x / 20)}), 3e-7);
    }
    for (double x = 1e-9; x < 1e-3; x *= 3) {
        expect("log1p small", 0, log1p_float(static_cast<float>(x)) / std::log1p(double{static_cast<float>(x)}), 1, 3e-7);
        expect("tanh small", 0, tanh_float(static_cast<float>(x)) / std::tanh(double{static_cast<float>(x)}), 1, 3e-7);
    }
    expect("exp", 0, exp_float(-200.0f), 0, 0);
    expect("softplus", 0, softplus(30.0f), 30, 0);
}

void kernels_without_a_format() {
    for (u32 dim : {80u, 7u, 256u}) attention_sees_its_cells(dim);
    keys_and_values_are_stored_like_blocks_of_weights();
    delta_rule_follows_the_recurrence("delta_rule", 4, 40, 6, 5);
    delta_rule_follows_the_recurrence("delta_chunks", 32, 40, 6, 5);
    delta_rule_follows_the_recurrence("delta_chunks", 32, 12, 3, 70);
    delta_rule_follows_the_recurrence("delta_chunks", 32, 128, 40, 33);
    blocks_and_experts_are_chosen_like_a_sort();
}

}  // namespace

int main(int count, char** arguments) {
    const std::string folder = count > 1 ? arguments[1] : "target/sim";
    void* library = dlopen((folder + "/libstrata_kernels_host.so").c_str(), RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 1;
    find_kernel = reinterpret_cast<SimgpuFind>(dlsym(library, "simgpu_find"));
    run_kernel = reinterpret_cast<SimgpuLaunchFn>(dlsym(library, "simgpu_launch"));
    const std::string unit = count > 2 ? arguments[2] : "";
    functions_are_close();
    for (const auto& [width, order] : {std::pair<unsigned, int>{32, 0}, {64, 1}}) {
        wave = width;
        reversed = order;
        if (unit.empty() || unit == "ops") kernels_without_a_format();
#define FORMAT(suffix, format, len, bytes)                                    \
    if (unit.empty() || unit == #suffix) {                                    \
        products<format>(#suffix, len, bytes, std::max(len * 2, 96));         \
        if constexpr (format::FLOATS) products<format>(#suffix, len, bytes, 90); \
        experts<format>(#suffix, len, bytes);                                 \
    }
        FORMATS(FORMAT)
    }
    printf("%zu numbers compared, %d of them wrong\n", compared, failures);
    return failures ? 1 : 0;
}
