// What tests of kernels share: memory of a launch, launches of simulated kernels, random matrices, counting of failures.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "../../kernels-cuda/prelude.h"
#include "../../kernels-cuda/formats/all.h"
#include "../../kernels-cuda/rounded.h"

namespace {

SimgpuFind find_kernel;
SimgpuLaunchFn run_kernel;
int failures = 0;
size_t compared = 0;
unsigned wave = 32;
int reversed = 0;

using Floats = std::vector<float>;

std::mt19937 generator(7);
Floats noise(size_t n) {
    std::uniform_real_distribution<float> between(-1, 1);
    Floats values(n);
    for (auto& v : values) v = between(generator);
    return values;
}

/// Memory of a launch, as words; a place in it is an offset in words, aligned to 256 bytes.
struct Memory {
    std::vector<u32> words;
    u32 add(const void* data, size_t bytes) {
        const size_t at = words.size();
        words.resize((at + (bytes + 3) / 4 + 63) / 64 * 64, 0xffffffffu);
        std::memcpy(words.data() + at, data, bytes);
        return static_cast<u32>(at);
    }
    template <class T>
    u32 add(const std::vector<T>& v) {
        return add(v.data(), v.size() * sizeof(T));
    }
    u32 room(size_t count) { return add(std::vector<u32>(count, 0xffffffffu)); }
    const float* floats(u32 at) const { return reinterpret_cast<const float*>(words.data() + at); }
    u64 address() { return reinterpret_cast<u64>(words.data()); }
};

/// All memories of a launch; the run block of rows of one sequence.
struct Bench {
    Memory run, w0, w1, w2, state, work, scratch;

    explicit Bench(u32 rows, u32 index = 0, const std::vector<u32>& versions = {}) {
        std::vector<u32> block = {rows, rows, 1, 8 + rows * ROW_WORDS, 8 + rows * ROW_WORDS + SPAN_WORDS, 0, 0, 0};
        for (u32 i = 0; i < rows; i++) {
            const u32 read = versions.empty() ? 0 : versions[i], write = versions.empty() ? 0 : versions[i + 1];
            for (u32 word : {0u, index + i, read, write, 0u, i, 0u, 0u}) block.push_back(word);
        }
        for (u32 word : {0u, rows, 0u, index}) block.push_back(word);
        for (u32 i = 0; i < rows; i++) block.push_back(i);
        run.add(block);
    }
    template <class ARGS>
    void launch(const std::string& name, const ARGS& args, u32 x, u32 y = 1, u32 z = 1) {
        const simt::Kernel* kernel = find_kernel(name.c_str());
        if (!kernel) return printf("no kernel %s\n", name.c_str()), exit(1);
        Operands at = {run.address(), w0.address(), w1.address(), w2.address(), state.address(), work.address(), scratch.address()};
        ARGS copy = args;
        void* arguments[] = {&at, &copy};
        const SimgpuLaunch launch = {{x, y, z}, {THREADS, 1, 1}, 0, arguments, wave, reversed, 1, 0xff};
        if (run_kernel(kernel, &launch)) printf("%s: deadlock\n", name.c_str()), failures++;
    }
};

void expect(const std::string& what, size_t i, double got, double want, double bound) {
    compared++;
    if (std::fabs(got - want) <= bound) return;
    if (failures++ < 40) printf("%s: element %zu is %.7g, expected %.7g (wave %u, reversed %d)\n", what.c_str(), i, got, want, wave, reversed);
}

/// A matrix of random blocks whose scales are plain numbers, and its values.
struct Matrix {
    std::vector<u8> bytes;
    std::vector<double> values;
    u32 rows, cols, row_bytes;
};
template <class F>
Matrix random_matrix(u32 rows, u32 cols, u32 block_len, u32 block_bytes) {
    Matrix m{{}, std::vector<double>(size_t{rows} * cols), rows, cols, cols / block_len * block_bytes};
    m.bytes.resize(size_t{rows} * m.row_bytes);
    for (u32 row = 0; row < rows; row++) {
        u8* bytes = m.bytes.data() + size_t{row} * m.row_bytes;
        for (u32 block = 0; block < cols / block_len; block++) {
            // Drawn again until all weights of the block are moderate.
            for (bool good = false; !good;) {
                for (u32 i = 0; i < block_bytes; i++) bytes[block * block_bytes + i] = static_cast<u8>(generator());
                good = true;
                for (u32 i = 0; i < block_len; i++) {
                    double value;
                    if constexpr (F::FLOATS) {
                        value = F::weight(bytes + block * block_bytes, i);
                    } else {
                        const Octet o = F::octet(bytes + block * block_bytes, i / 8);
                        value = o.scale * static_cast<i8>(o.q[i / 4 % 2] >> (8 * (i % 4))) + o.offset;
                    }
                    good &= std::fabs(value) < 100;
                    m.values[size_t{row} * cols + block * block_len + i] = value;
                }
            }
        }
    }
    return m;
}

/// Rounds the rows at `x_at` of the work memory into the scratch.
u32 quantise_rows(Bench& b, u32 x_at, u32 rows, u32 width, u32 stride) {
    const u32 q_at = b.scratch.room(size_t{rows} * width / 32 * ROUNDED_WORDS);
    QuantiseArgs q{};
    q.x_at = x_at, q.x_stride = stride, q.width = width, q.q_at = q_at, q.q_stride = width / 32 * ROUNDED_WORDS;
    b.launch("quantise", q, (width + 255) / 256, rows);
    return q_at;
}

}  // namespace
