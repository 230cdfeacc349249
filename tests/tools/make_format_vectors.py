#!/usr/bin/env python3
"""Writes tests/vectors/: for every block format random blocks and the weights that the reference gives for them.

    pip install numpy gguf==0.19.0
    python tests/tools/make_format_vectors.py [--ggml libggml-base.so] [--out tests/vectors]

The reference is the PyPI package gguf 0.19.0. It does not know Q2_0; that one is decoded here as ggml defines it. With
--ggml every quantised format is decoded by ggml's own C functions too, and the two must agree bit for bit (they do with
the library of llama-cpp-python 0.3.36; one whose compiler fused multiply and subtract would differ in a few formats).

Blocks of a format (fixed seed): 256 with every byte random, 256 with the f16 scales of magnitude 2^-12..2^4 and either
sign, a few with special scales. In each of the two large parts every byte of the block takes each of the 256 values exactly
once (other than bytes of f16 scales), so every value at every position is covered. F16 and BF16: all 65536 values.
Infinite and NaN scales occur in the special blocks only.

File, little endian:
    "STRV", u32 version = 1, u32 ggml_type, u32 block_len, u32 block_bytes, u32 blocks, u32 blocks_per_hash, u32 full_blocks
    blocks * block_bytes bytes
    f32[full_blocks * block_len]      weights of the last `full_blocks` blocks
    u64[blocks / blocks_per_hash]     FNV-1a of the bytes of the weights of each group of blocks
NaNs are written (and hashed) as 0x7fc00000.

encode.bin: for the formats that the package can write and whose rounding is part of ggml's definition:
    "STRE", u32 version = 1, u32 formats, u32 weights, f32[weights], then for each format u32 ggml_type, u32 bytes, bytes
"""

import argparse
import ctypes
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

Q2_0 = 42
# name: (ggml type, offsets of the f16 scales in a block)
FORMATS = {
    "F32": (0, []), "F16": (1, []), "BF16": (30, []),
    "Q8_0": (8, [0]), "Q4_0": (2, [0]), "Q4_1": (3, [0, 2]), "Q5_0": (6, [0]), "Q5_1": (7, [0, 2]),
    "Q2_K": (10, [80, 82]), "Q3_K": (11, [108]), "Q4_K": (12, [0, 2]), "Q5_K": (13, [0, 2]), "Q6_K": (14, [208]),
    "IQ1_S": (19, [0]), "IQ1_M": (29, None), "IQ2_XXS": (16, [0]), "IQ2_XS": (17, [0]), "IQ2_S": (22, [0]),
    "IQ3_XXS": (18, [0]), "IQ3_S": (21, [0]), "IQ4_NL": (20, [0]), "IQ4_XS": (23, [0]),
    "Q2_0": (Q2_0, [0]), "MXFP4": (39, []), "NVFP4": (40, []), "TQ1_0": (34, [52]), "TQ2_0": (35, [64]),
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]
ENCODED = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4"]
FULL_BLOCKS_BYTES = 12 << 10


def sizes(ggml_type):
    return (64, 18) if ggml_type == Q2_0 else GGML_QUANT_SIZES[T(ggml_type)]


def dequantize(blocks, ggml_type):
    if ggml_type != Q2_0:
        return quants.dequantize(blocks, T(ggml_type))
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return (codes.reshape(len(blocks), 64).astype(np.float32) - 1) * d


def put_scales(blocks, offsets, scales):
    """`scales` (blocks, number of scales) of f16 bits into the blocks; None: the scattered scale of IQ1_M."""
    if offsets is None:
        words = blocks[:, 48:56].copy().view("<u2") & 0x0FFF
        nibbles = (scales[:, :1] >> np.array([0, 4, 8, 12], np.uint16)) & 15
        blocks[:, 48:56] = (words | nibbles << 12).astype("<u2").view(np.uint8)
        return
    for column, offset in enumerate(offsets):
        blocks[:, offset : offset + 2] = scales[:, column, None].astype("<u2").view(np.uint8)


def every_value_everywhere(rng, block_bytes):
    return np.stack([rng.permutation(256).astype(np.uint8) for _ in range(block_bytes)], axis=1)


def make_blocks(rng, ggml_type, offsets):
    _, block_bytes = sizes(ggml_type)
    if ggml_type in (T.F16, T.BF16):
        return np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    if ggml_type == T.F32:
        return rng.integers(0, 256, (4096, 4), dtype=np.uint8)
    columns = 1 if offsets is None else len(offsets)
    wild = every_value_everywhere(rng, block_bytes)
    scales = rng.integers(0, 65536, (256, columns), dtype=np.uint16)
    put_scales(wild, offsets, np.where(scales & 0x7C00 == 0x7C00, scales & 0xBFFF, scales))
    sane = every_value_everywhere(rng, block_bytes)
    scales = (2.0 ** rng.uniform(-12, 4, (256, columns)) * rng.choice([-1, 1], (256, columns))).astype(np.float16)
    put_scales(sane, offsets, scales.view(np.uint16))
    special = rng.integers(0, 256, (len(SPECIAL) * columns, block_bytes), dtype=np.uint8)
    scales = np.full((len(special), columns), 0x2E66, np.uint16)
    for i, bits in enumerate(SPECIAL):
        for column in range(columns):
            scales[columns * i + column, column] = bits
    put_scales(special, offsets, scales)
    return np.concatenate([special, wild, sane])


def canonical(values):
    values = np.ascontiguousarray(values, dtype="<f4").copy()
    values.view("<u4")[np.isnan(values)] = 0x7FC00000
    return values


def fnv1a(rows):
    """64-bit FNV-1a of each row of bytes."""
    state = np.full(len(rows), 0xCBF29CE484222325, np.uint64)
    for column in rows.T:
        state = (state ^ column) * np.uint64(0x100000001B3)
    return state


def compare_with_ggml(library, name, ggml_type, blocks, expected):
    function = getattr(library, "dequantize_row_" + name.lower().replace("_k", "_K"))
    out = np.zeros(expected.shape, np.float32)
    source = np.ascontiguousarray(blocks)
    function(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
    differ = canonical(out).view("<u4") != expected.view("<u4")
    assert not differ.any(), f"{name}: {differ.sum()} weights differ from ggml"
    print(f"{name}: ggml agrees on {out.size} weights")


def write_vectors(rng, name, ggml_type, offsets, out, library):
    block_len, block_bytes = sizes(ggml_type)
    blocks = make_blocks(rng, ggml_type, offsets)
    with np.errstate(all="ignore"):
        expected = canonical(dequantize(blocks, ggml_type)).reshape(len(blocks), block_len)
    if library is not None and block_len > 1:
        compare_with_ggml(library, name, ggml_type, blocks, expected)
    per_hash = 1 if block_len > 1 else 256
    full = min(FULL_BLOCKS_BYTES // (4 * block_len), len(blocks))
    hashes = fnv1a(expected.reshape(len(blocks) // per_hash, -1).view(np.uint8))
    header = struct.pack("<4s7I", b"STRV", 1, ggml_type, block_len, block_bytes, len(blocks), per_hash, full)
    body = header + blocks.tobytes() + expected[len(blocks) - full :].tobytes() + hashes.astype("<u8").tobytes()
    (out / f"{name}.bin").write_bytes(body)


def write_encoded(rng, out):
    weights = np.concatenate([
        rng.standard_normal(512) * 2.0 ** rng.uniform(-8, 8, 512).round(),
        rng.standard_normal(512) * 0.02, np.zeros(256), rng.integers(-1, 2, 256) * 0.75,
    ]).astype(np.float32)
    body = struct.pack("<4s3I", b"STRE", 1, len(ENCODED), len(weights)) + weights.tobytes()
    for name in ENCODED:
        ggml_type = FORMATS[name][0]
        encoded = quants.quantize(weights, T(ggml_type)).tobytes()
        body += struct.pack("<2I", ggml_type, len(encoded)) + encoded
    (out / "encode.bin").write_bytes(body)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "vectors")
    parser.add_argument("--ggml", help="libggml-base, as a second opinion")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    library = ctypes.CDLL(args.ggml) if args.ggml else None
    for name, (ggml_type, offsets) in FORMATS.items():
        # a seed for each format: adding one does not change the others
        write_vectors(np.random.default_rng([2026, ggml_type]), name, ggml_type, offsets, args.out, library)
    write_encoded(np.random.default_rng(2026), args.out)


main()
