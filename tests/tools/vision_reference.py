#!/usr/bin/env python3
"""Makes the tiny random vision encoder of tests/fixtures/vision and its reference rows.

  pip install gguf==0.19.0 numpy
  python3 tests/tools/vision_reference.py [--out tests/fixtures/vision]
  pip install torch==2.15.0 transformers==5.24.0
  python3 tests/tools/vision_reference.py --check-hf      # compares `encode` with HF's Qwen4ExpVisionModel; writes nothing
  python3 tests/tools/vision_reference.py --model tests/fixtures/tiny-random-BF16.gguf --loader gguf_to_hf.py

tiny-vision.gguf is an mmproj file of the kind of Qwen3-VL without deepstack. tiny-vision.npz has for every grid of GRIDS (rows x
columns of patches), in float32 and computed in float64 by `encode` from the stored weights:
  embedded_RxC  [patches, width]            after the patch and place embeddings
  rows_RxC      [patches / 4, output width] what stands in place of token embeddings
The pixels are `pixels(grid)`, which tests compute for themselves.

The last command writes tiny-random-pictures.npz: what HF's whole model (Qwen4ExpForConditionalGeneration, float32) makes of a text
with two pictures, its own encoder, positions and n-grams included. The loader is the module that the text references of the
tiny models were made with: `load(path)` gives HF's text model with the weights of a GGUF file.
  tokens  int32 [n]          the picture token at the places of pictures
  grids   int32 [2, 2]       of pixels(grid), in patches
  logits  float32 [n, vocab] of every position

`encode` is written from the published description of the encoder and shares no code with any engine.
"""
import argparse
import math
import os

import gguf
import numpy as np

WIDTH, INNER, LAYERS, HEADS, PATCH, MERGE, SIDE, OUT = 48, 96, 2, 2, 16, 2, 6, 256
EPS = 1e-6
GRIDS = [(2, 2), (6, 4), (2, 10), (14, 10)]


def pixels(grid):
    """[patches, 3 * PATCH * PATCH] in float32: the same numbers in any language."""
    rows, columns = grid
    i = np.arange(rows * columns * 3 * PATCH * PATCH, dtype=np.int64)
    return ((((i * 7919 + 31 * rows) % 2003).astype(np.float32) - 1001) / 1001).reshape(rows * columns, -1)


def names():
    """Name, shape (outputs first) and format of every tensor."""
    f32, f16, bf16, q8 = (getattr(gguf.GGMLQuantizationType, n) for n in ("F32", "F16", "BF16", "Q8_0"))
    yield "v.patch_embd.weight", (WIDTH, 3, PATCH, PATCH), f16
    yield "v.patch_embd.weight.1", (WIDTH, 3, PATCH, PATCH), f16
    yield "v.patch_embd.bias", (WIDTH,), f32
    yield "v.position_embd.weight", (SIDE * SIDE, WIDTH), f32
    for i in range(LAYERS):
        base = f"v.blk.{i}."
        for norm in ("ln1", "ln2"):
            yield base + norm + ".weight", (WIDTH,), f32
            yield base + norm + ".bias", (WIDTH,), f32
        for part, shape, kind in (
            ("attn_qkv", (3 * WIDTH, WIDTH), bf16),
            ("attn_out", (WIDTH, WIDTH), f16),
            ("ffn_up", (INNER, WIDTH), f16),
            ("ffn_down", (WIDTH, INNER), q8),
        ):
            yield base + part + ".weight", shape, kind
            yield base + part + ".bias", shape[:1], f32
    yield "v.post_ln.weight", (WIDTH,), f32
    yield "v.post_ln.bias", (WIDTH,), f32
    joined = WIDTH * MERGE * MERGE
    yield "mm.0.weight", (joined, joined), q8
    yield "mm.0.bias", (joined,), f32
    yield "mm.2.weight", (OUT, joined), q8
    yield "mm.2.bias", (OUT,), f32


def make(path):
    """Writes the file; the same bits on every run."""
    random = np.random.default_rng(20261201)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_string("general.name", "tiny-vision")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "image_size": SIDE * PATCH,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "projection_dim": OUT,
        "spatial_merge_size": MERGE,
    }.items():
        writer.add_uint32("clip.vision." + key, value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPS)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.is_deepstack_layers", [False] * LAYERS)
    for name, shape, kind in names():
        if "ln" in name and name.endswith("weight"):
            values = 1 + 0.2 * random.standard_normal(shape)
        elif len(shape) == 1:
            values = 0.3 * random.standard_normal(shape)
        elif name == "v.position_embd.weight":
            values = random.standard_normal(shape)
        else:
            # Attention that looks at few patches tells more than one that looks at all alike.
            factor = 2.0 if "qkv" in name else 1.0
            values = factor * random.standard_normal(shape) / math.sqrt(np.prod(shape[1:]))
        values = values.astype(np.float32)
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(path):
    """Every tensor as the file has it, in float64, outputs first."""
    reader = gguf.GGUFReader(path)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    shapes = {name: shape for name, shape, _ in names()}
    return {name: value.reshape(shapes[name]) for name, value in values.items()}


def order(grid):
    """Row and column of every patch: squares of MERGE x MERGE row by row, patches of a square row by row."""
    for y in range(0, grid[0], MERGE):
        for x in range(0, grid[1], MERGE):
            for dy in range(MERGE):
                for dx in range(MERGE):
                    yield y + dy, x + dx


def places(table, grid):
    """The table of SIDE x SIDE vectors stretched over the grid, corners on corners, bilinear."""
    table = table.reshape(SIDE, SIDE, WIDTH)
    at = [np.linspace(0, SIDE - 1, n) if n > 1 else np.zeros(1) for n in grid]
    out = []
    for y, x in order(grid):
        down, across = at[0][y], at[1][x]
        top, left = int(down), int(across)
        bottom, right = min(top + 1, SIDE - 1), min(left + 1, SIDE - 1)
        down, across = down - top, across - left
        upper = (1 - across) * table[top, left] + across * table[top, right]
        lower = (1 - across) * table[bottom, left] + across * table[bottom, right]
        out.append((1 - down) * upper + down * lower)
    return np.array(out)


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPS) * weight + bias


def turn(heads, grid):
    """Rotates [patches, heads, dim]: pairs (j, j + dim / 2); the first half of the pairs by the row, the others by the column."""
    dim = heads.shape[-1]
    axis = dim // 4
    frequency = 10000.0 ** (-np.arange(axis) / axis)
    angle = np.array([np.concatenate([y * frequency, x * frequency]) for y, x in order(grid)])[:, None, :]
    low, high = heads[..., : dim // 2], heads[..., dim // 2 :]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def encode(w, grid, patches):
    """What the encoder makes of a still picture: after the embeddings, and in the end."""
    linear = lambda name, x: x @ w[name + ".weight"].T + w[name + ".bias"]
    both = (w["v.patch_embd.weight"] + w["v.patch_embd.weight.1"]).reshape(WIDTH, -1)
    x = embedded = patches.astype(np.float64) @ both.T + w["v.patch_embd.bias"] + places(w["v.position_embd.weight"], grid)
    dim = WIDTH // HEADS
    for i in range(LAYERS):
        base = f"v.blk.{i}."
        normed = layer_norm(x, w[base + "ln1.weight"], w[base + "ln1.bias"])
        q, k, v = (part.reshape(-1, HEADS, dim) for part in np.split(linear(base + "attn_qkv", normed), 3, axis=-1))
        q, k = turn(q, grid), turn(k, grid)
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + linear(base + "attn_out", np.einsum("hij,jhd->ihd", weights, v).reshape(-1, WIDTH))
        normed = layer_norm(x, w[base + "ln2.weight"], w[base + "ln2.bias"])
        x = x + linear(base + "ffn_down", gelu_tanh(linear(base + "ffn_up", normed)))
    joined = layer_norm(x, w["v.post_ln.weight"], w["v.post_ln.bias"]).reshape(-1, WIDTH * MERGE * MERGE)
    return embedded, linear("mm.2", gelu_erf(linear("mm.0", joined)))


def hf_config():
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpVisionConfig

    return Qwen4ExpVisionConfig(
        depth=LAYERS, hidden_size=WIDTH, intermediate_size=INNER, num_heads=HEADS, in_channels=3, patch_size=PATCH,
        spatial_merge_size=MERGE, temporal_patch_size=2, out_hidden_size=OUT, num_position_embeddings=SIDE * SIDE,
        hidden_act="gelu_pytorch_tanh", attn_implementation="eager",
    )


def hf_load(model, w):
    """Gives HF's encoder the weights of the file."""
    import torch

    kernels = np.stack([w["v.patch_embd.weight"], w["v.patch_embd.weight.1"]], axis=2)
    state = {"patch_embed.proj.weight": kernels, "patch_embed.proj.bias": w["v.patch_embd.bias"]}
    state["pos_embed.weight"] = w["v.position_embd.weight"]
    renamed = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj",
               "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
    for name, value in w.items():
        parts = name.split(".")
        if name.startswith("v.blk."):
            state[f"blocks.{parts[2]}.{renamed[parts[3]]}.{parts[4]}"] = value
        elif parts[0] == "mm":
            state[f"merger.linear_fc{1 if parts[1] == '0' else 2}.{parts[2]}"] = value
        elif parts[1] == "post_ln":
            state[f"merger.norm.{parts[2]}"] = value
    state = {name: torch.tensor(value, dtype=torch.float32) for name, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("inv_freq" in name for name in missing), (missing, unexpected)
    return model.float().eval()


def frames(patches):
    """HF takes both frames: [patch][channel][frame][y][x]."""
    return np.repeat(patches.reshape(-1, 3, 1, PATCH * PATCH), 2, axis=2).reshape(len(patches), -1)


def check_hf(w):
    import torch
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpVisionModel

    model = hf_load(Qwen4ExpVisionModel(hf_config()), w)
    for grid in GRIDS:
        with torch.no_grad():
            found = model(torch.tensor(frames(pixels(grid))), grid_thw=torch.tensor([[1, *grid]])).pooler_output
        expected = encode(w, grid, pixels(grid))[1]
        found = found.double().numpy()
        print(f"{grid}: relative L2 distance of HF (float32) {np.linalg.norm(found - expected) / np.linalg.norm(expected):.2e}")


# The text around and between the pictures: lengths, so that blocks of the indexer begin in one part and end in another.
TEXT = (9, 6, 14)
PICTURES = (GRIDS[3], GRIDS[2])


def whole_model(w, path, loader_path):
    """Tokens, and the logits that HF's whole model has for them."""
    import importlib.util

    import torch
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForConditionalGeneration

    spec = importlib.util.spec_from_file_location("loader", loader_path)
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    text_model, kv = loader.load(path)
    words = kv["tokenizer.ggml.tokens"]
    pad, start, end = (words.index(t) for t in ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"))
    config = Qwen4ExpConfig(
        text_config=text_model.config.to_dict(), vision_config=hf_config().to_dict(), image_token_id=pad,
        video_token_id=words.index("<|video_pad|>"), vision_start_token_id=start, vision_end_token_id=end,
    )
    model = Qwen4ExpForConditionalGeneration(config).float().eval()
    model.model.language_model = text_model.model
    model.lm_head = text_model.lm_head
    hf_load(model.model.visual, w)
    word = iter((i * 37 + 11) % 400 for i in range(1000))
    tokens = []
    for length, grid in zip(TEXT, (*PICTURES, None)):
        tokens += [next(word) for _ in range(length)]
        if grid:
            tokens += [start] + [pad] * (grid[0] * grid[1] // MERGE**2) + [end]
    ids = torch.tensor([tokens])
    with torch.no_grad():
        out = model(
            input_ids=ids, mm_token_type_ids=(ids == pad).int(), use_cache=False,
            pixel_values=torch.tensor(np.concatenate([frames(pixels(grid)) for grid in PICTURES])),
            image_grid_thw=torch.tensor([[1, *grid] for grid in PICTURES]),
        )
    return np.array(tokens, np.int32), out.logits[0].float().numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="tests/fixtures/vision")
    parser.add_argument("--check-hf", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--loader")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "tiny-vision.gguf")
    if args.check_hf:
        return check_hf(stored(path))
    if args.model:
        tokens, logits = whole_model(stored(path), args.model, args.loader)
        grids = np.array(PICTURES, np.int32)
        return np.savez_compressed(os.path.join(args.out, "tiny-random-pictures.npz"), tokens=tokens, grids=grids, logits=logits)
    make(path)
    weights, arrays = stored(path), {}
    for grid in GRIDS:
        embedded, rows = encode(weights, grid, pixels(grid))
        name = f"{grid[0]}x{grid[1]}"
        arrays["rows_" + name] = rows.astype(np.float32)
        if grid != GRIDS[-1]:
            arrays["embedded_" + name] = embedded.astype(np.float32)
    np.savez_compressed(os.path.join(args.out, "tiny-vision.npz"), **arrays)


if __name__ == "__main__":
    main()
