// Every format of kernels-cuda/formats against the vectors of tests/vectors (tests/tools/make_format_vectors.py), bit for bit.
//
//   formats_test tests/vectors
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../../kernels-cuda/prelude.h"
#include "../../kernels-cuda/formats/all.h"

namespace {

struct Vectors {
    std::vector<u8> blocks;
    std::vector<u32> full;  // bits of the weights of the last blocks
    u32 block_len, block_bytes, block_count, blocks_per_hash;
    std::vector<u64> hashes;
};

bool read_vectors(const std::string& path, Vectors& v) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    size_t at = 0;
    auto take = [&](void* to, size_t n) {
        if (at + n > bytes.size()) return false;
        std::memcpy(to, bytes.data() + at, n);
        at += n;
        return true;
    };
    u32 head[8];  // magic, version, type, block_len, block_bytes, block_count, blocks_per_hash, full_blocks
    if (!take(head, sizeof head) || std::memcmp(head, "STRV", 4) || head[1] != 1) return false;
    v.block_len = head[3];
    v.block_bytes = head[4];
    v.block_count = head[5];
    v.blocks_per_hash = head[6];
    v.blocks.resize(size_t{head[5]} * head[4]);
    v.full.resize(size_t{head[7]} * head[3]);
    v.hashes.resize(head[5] / head[6]);
    return take(v.blocks.data(), v.blocks.size()) && take(v.full.data(), v.full.size() * 4) &&
           take(v.hashes.data(), v.hashes.size() * 8) && at == bytes.size();
}

/// The bits, with one pattern for all NaNs.
u32 bits(float weight) { return weight != weight ? 0x7fc00000u : float_to_bits(weight); }

template <class F>
std::vector<u32> decode(const Vectors& v) {
    const size_t len = size_t{v.block_count} * v.block_len;
    std::vector<u32> weights(len);
    if constexpr (F::FLOATS) {
        for (size_t i = 0; i < len; i++) weights[i] = bits(F::weight(v.blocks.data(), static_cast<u32>(i)));
    } else {
        for (size_t o = 0; o < len / 8; o++) {
            const Octet octet = F::octet(v.blocks.data(), static_cast<u32>(o));
            const Octet leader = F::octet(v.blocks.data(), static_cast<u32>(o / (F::SCALE_COLS / 8) * (F::SCALE_COLS / 8)));
            if (bits(octet.scale) != bits(leader.scale) || bits(octet.offset) != bits(leader.offset)) {
                printf("octet %zu has a scale of its own\n", o);
                weights[8 * o] = ~0u;
                continue;
            }
            for (u32 j = 0; j < 8; j++) {
                const float product = octet.scale * static_cast<float>(static_cast<i8>(octet.q[j / 4] >> (8 * (j % 4))));
                // Formats without an offset add nothing, not even a zero that could change the sign of one.
                if constexpr (F::OFFSET) weights[8 * o + j] = bits(product + octet.offset);
                else weights[8 * o + j] = bits(product);
            }
        }
    }
    return weights;
}

template <class F>
bool check(const std::string& folder, const char* name, u32 block_len, u32 block_bytes) {
    Vectors v;
    if (!read_vectors(folder + "/" + name + ".bin", v)) return printf("%s: no vectors in %s\n", name, folder.c_str()), false;
    if (v.block_len != block_len || v.block_bytes != block_bytes) return printf("%s: wrong size of a block\n", name), false;
    const std::vector<u32> weights = decode<F>(v);
    const size_t first_full = weights.size() - v.full.size();
    for (size_t i = 0; i < v.full.size(); i++) {
        const u32 want = bits(bits_to_float(v.full[i]));
        if (weights[first_full + i] != want)
            return printf("%s: weight %zu is %08x, expected %08x\n", name, first_full + i, weights[first_full + i], want), false;
    }
    const size_t group = size_t{v.blocks_per_hash} * v.block_len;
    for (size_t h = 0; h < v.hashes.size(); h++) {
        u64 hash = 0xcbf29ce484222325ull;
        for (size_t i = 0; i < group; i++)
            for (u32 b = 0; b < 4; b++) hash = (hash ^ (weights[h * group + i] >> (8 * b) & 0xff)) * 0x100000001b3ull;
        if (hash != v.hashes[h]) return printf("%s: blocks from %zu on decode differently\n", name, h * v.blocks_per_hash), false;
    }
    printf("%s: %u blocks, bit for bit\n", name, v.block_count);
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    const std::string folder = count > 1 ? arguments[1] : "tests/vectors";
    bool good = true;
#define CHECK(suffix, format, len, bytes) good &= check<format>(folder, #format, len, bytes);
    FORMATS(CHECK)
    return good ? 0 : 1;
}
