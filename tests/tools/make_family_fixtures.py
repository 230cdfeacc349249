#!/usr/bin/env python3
"""Makes the tiny random models of tests/fixtures/families and their reference logits.

  pip install gguf==0.19.0 numpy llama-cpp-python==0.3.36
  python3 tests/tools/make_family_fixtures.py [--out tests/fixtures/families] [--only NAME] [--no-peer]

For each model: NAME.gguf, and NAME.npz with
  tokens        int32 [n]      the prompt
  logits        float32 [n, V] of every position, computed in float64 by `forward` below from the stored weights
  peer_rel_l2   float64 [1]    largest relative L2 distance, over the positions, of llama.cpp's logits from these
                               (float32 weights, keys and values, flash attention off); -1 where it was not run.
                               Of models that pool: the distance of llama.cpp's vector
  embedding     float32 [E]    of models that pool: the vector of length 1 that the prompt has; logits are left out then
  peer_gelu_rel_l2  float64 [1]  Gemma only: the same when `forward` rounds GELU as llama.cpp does, which looks it up in a
                               table of 16-bit floats

`forward` is written from the published descriptions of the models and shares no code with any engine; llama.cpp confirms
that both mean the same thing. Weights come from a seeded generator, so the GGUF files are the same bits on every run.
"""
import argparse
import math
import os

import gguf
import numpy as np


def printable_texts():
    """Printable ASCII, space and newline as byte-level BPE writes them, and placeholders: 160 tokens."""
    texts = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a", "ab"]
    return texts + [f"<unused{i}>" for i in range(159 - len(texts))] + ["<end>"]


def byte_texts():
    """All bytes as byte-level BPE writes them, so that every text can be encoded."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)] + ["ab", "<end>"]


# ---------------------------------------------------------------------------------------------------------------- models

class Spec:
    """Sizes and traits of one model; what is not given has the value that most families have."""

    def __init__(self, name, arch, **traits):
        self.name, self.arch = name, arch
        self.seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
        self.layers, self.width, self.hidden, self.tokens = 2, 64, 64, 48
        self.heads, self.kv_heads, self.head_dim = 4, 2, 16
        self.base, self.eps, self.context = 10000.0, 1e-5, 256
        self.texts = printable_texts()  # of the tokens, the last of which ends a text
        self.tied = self.biases = self.head_norms = self.gemma = False
        self.experts = self.used = 0
        self.factors = None            # rope_freqs.weight
        self.scaling = None            # ("linear", factor) or ("yarn", factor, original, attn_factor, fast, slow)
        self.window, self.local_base = None, 10000.0
        self.window_pattern = None     # a layer pattern other than 5 local layers and 1 global
        self.formats = {}              # part of a tensor's name: GGML type; F32 otherwise
        self.extra_keys = []           # (method of the writer, its arguments)
        self.pooling = None            # "MEAN" or "LAST": an embedding model
        self.peer = True               # whether llama.cpp can run it
        self.__dict__.update(traits)
        self.vocab = len(self.texts)

    def is_local(self, layer):
        return self.gemma and self.window is not None and (layer + 1) % (self.window_pattern or 6) != 0


def llama3_factors(dims, base, factor=8.0, low=1.0, high=4.0, original=32):
    """The per-pair divisors of Llama 3.1's scaling, for a short original context."""
    out = []
    for i in range(dims // 2):
        wavelength = 2 * math.pi * base ** (2 * i / dims)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def models():
    q8, bf16, f16 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F16
    return [
        Spec("llama-gqa", "llama"),
        Spec("llama-tied", "llama", tied=True, kv_heads=4, layers=3, width=48, head_dim=12, hidden=56),
        Spec("llama-factors", "llama", tied=True, factors=llama3_factors(16, 500000.0), base=500000.0),
        Spec("llama-linear", "llama", tied=True, scaling=("linear", 4.0)),
        # Every YaRN key, positions beyond the original context.
        Spec("llama-yarn", "llama", scaling=("yarn", 4.0, 32, 0.9, 24.0, 2.0), tokens=96, base=1000.0, tied=True),
        Spec("llama-moe", "llama", experts=4, used=2, width=48, head_dim=12, hidden=32),
        Spec("qwen2", "qwen2", biases=True, tied=True, base=1e6, eps=1e-6),
        # Norms and biases that are not F32 are more than llama.cpp takes.
        Spec("qwen2-mixed", "qwen2", biases=True, base=1e6, eps=1e-6, hidden=96, peer=False,
             formats={"attn_q.weight": bf16, "attn_k.weight": f16, "attn_v.weight": q8, "attn_output": q8, "ffn_gate": bf16,
                      "ffn_up": f16, "ffn_down": q8, "token_embd": q8, "output.weight": bf16, "attn_norm": f16,
                      "ffn_norm": bf16, "attn_q.bias": bf16}),
        Spec("qwen3", "qwen3", head_norms=True, head_dim=24, base=1e6, eps=1e-6, tied=True),
        # As Qwen's model cards ask for long contexts: type, factor and original length, nothing else.
        Spec("qwen3-yarn", "qwen3", head_norms=True, head_dim=32, heads=2, kv_heads=1, base=10000.0, eps=1e-6,
             scaling=("yarn", 4.0, 32, None, None, None), tokens=96),
        Spec("qwen3moe", "qwen3moe", head_norms=True, head_dim=24, kv_heads=1, base=1e6, eps=1e-6, experts=8, used=3, width=48,
             hidden=16),
        # Embedding models, as Qwen3-Embedding (a token ends every text) and as the older ones that take the mean.
        Spec("qwen3-embed-last", "qwen3", head_norms=True, head_dim=24, base=1e6, eps=1e-6, tied=True, pooling="LAST", context=2048, texts=byte_texts(),
             extra_keys=[("add_add_eos_token", True)]),
        Spec("llama-embed-mean", "llama", tied=True, pooling="MEAN", context=2048, texts=byte_texts()),
        Spec("gemma3", "gemma3", gemma=True, head_norms=True, tied=True, layers=7, width=32, heads=3, kv_heads=1, head_dim=24,
             hidden=40, base=1e6, eps=1e-6, window=8, scaling=("linear", 8.0)),
        # No scaling, another rotary base for local layers, every third layer global.
        Spec("gemma3-local", "gemma3", gemma=True, head_norms=True, tied=True, layers=4, width=48, heads=2, kv_heads=2,
             head_dim=16, hidden=64, base=1e6, eps=1e-6, window=11, local_base=2000.0, window_pattern=3,
             extra_keys=[("add_float32", "gemma3.rope.freq_base_swa", 2000.0),
                         ("add_uint32", "gemma3.attention.sliding_window_pattern", 3)]),
    ]


def make_weights(s):
    rng = np.random.default_rng(s.seed)
    w = {}

    def matrix(name, rows, cols, gain=1.0, experts=None):
        shape = (rows, cols) if experts is None else (experts, rows, cols)
        w[name] = (rng.standard_normal(shape) * gain / math.sqrt(cols)).astype(np.float32)

    def norm(name, n):
        w[name] = (1 + 0.3 * rng.standard_normal(n)).astype(np.float32)

    def bias(name, n):
        w[name] = (0.3 * rng.standard_normal(n)).astype(np.float32)

    # With Gemma's factor sqrt(width) the embedding has to be small to begin with.
    matrix("token_embd.weight", s.vocab, s.width, gain=1.0 if s.gemma else math.sqrt(s.width))
    for i in range(s.layers):
        b = f"blk.{i}."
        norm(b + "attn_norm.weight", s.width)
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        gain = 1.0 if s.head_norms else 1.8
        for part, rows in [("q", q), ("k", kv), ("v", kv)]:
            matrix(f"{b}attn_{part}.weight", rows, s.width, gain=gain)
            if s.biases:
                bias(f"{b}attn_{part}.bias", rows)
        matrix(b + "attn_output.weight", s.width, q)
        if s.head_norms:
            norm(b + "attn_q_norm.weight", s.head_dim)
            norm(b + "attn_k_norm.weight", s.head_dim)
        norm(b + "ffn_norm.weight", s.width)
        if s.gemma:
            norm(b + "post_attention_norm.weight", s.width)
            norm(b + "post_ffw_norm.weight", s.width)
        if s.experts:
            matrix(b + "ffn_gate_inp.weight", s.experts, s.width, gain=1.5)
            matrix(b + "ffn_gate_exps.weight", s.hidden, s.width, experts=s.experts)
            matrix(b + "ffn_up_exps.weight", s.hidden, s.width, experts=s.experts)
            matrix(b + "ffn_down_exps.weight", s.width, s.hidden, experts=s.experts)
        else:
            matrix(b + "ffn_gate.weight", s.hidden, s.width)
            matrix(b + "ffn_up.weight", s.hidden, s.width)
            matrix(b + "ffn_down.weight", s.width, s.hidden)
    norm("output_norm.weight", s.width)
    if not s.tied:
        matrix("output.weight", s.vocab, s.width)
    if s.factors is not None:
        w["rope_freqs.weight"] = s.factors
    tokens = rng.integers(0, s.vocab, s.tokens).astype(np.int32)
    return w, tokens


# ------------------------------------------------------------------------------------------------------------------ file

def write(s, weights, path):
    g = gguf.GGUFWriter(path, s.arch)
    g.add_name(s.name)
    g.add_block_count(s.layers)
    g.add_context_length(s.context)
    g.add_embedding_length(s.width)
    g.add_feed_forward_length(s.hidden)
    g.add_head_count(s.heads)
    g.add_head_count_kv(s.kv_heads)
    if s.head_dim != s.width // s.heads or s.gemma:
        g.add_key_length(s.head_dim)
        g.add_value_length(s.head_dim)
    g.add_layer_norm_rms_eps(s.eps)
    g.add_rope_freq_base(s.base)
    if s.arch == "llama":
        g.add_rope_dimension_count(s.head_dim)
    if s.experts:
        g.add_expert_count(s.experts)
        g.add_expert_used_count(s.used)
        if s.arch == "qwen3moe":
            g.add_expert_feed_forward_length(s.hidden)
    if s.window:
        g.add_sliding_window(s.window)
    if s.scaling:
        g.add_rope_scaling_type(gguf.RopeScalingType(s.scaling[0]))
        g.add_rope_scaling_factor(s.scaling[1])
    if s.scaling and s.scaling[0] == "yarn":
        _, _, original, attn, fast, slow = s.scaling
        g.add_rope_scaling_orig_ctx_len(original)
        for key, value in [("attn_factor", attn), ("yarn_beta_fast", fast), ("yarn_beta_slow", slow)]:
            if value is not None:
                g.add_float32(f"{s.arch}.rope.scaling.{key}", value)
    if s.pooling:
        g.add_pooling_type(gguf.PoolingType[s.pooling])
    for method, *arguments in s.extra_keys:
        getattr(g, method)(*arguments)
    texts = s.texts
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-2")
    g.add_token_list(texts)
    g.add_token_types([normal] * (s.vocab - 1) + [control])
    g.add_token_merges(["a b"])
    g.add_eos_token_id(s.vocab - 1)
    g.add_add_bos_token(False)
    exact = {}
    for name, data in weights.items():
        kind = next((k for part, k in s.formats.items() if part in name), gguf.GGMLQuantizationType.F32)
        stored = gguf.quants.quantize(data, kind)
        exact[name] = gguf.quants.dequantize(stored, kind).astype(np.float64).reshape(data.shape)
        if kind == gguf.GGMLQuantizationType.F16:
            g.add_tensor(name, data.astype(np.float16))
        else:
            g.add_tensor(name, stored, raw_dtype=kind)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()
    return exact


# ------------------------------------------------------------------------------------------------------------- reference

def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def rotary(s, local):
    """Frequency of each pair, and the factor on sine and cosine."""
    dims = s.head_dim
    base = s.local_base if local else s.base
    plain = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if s.factors is not None:
        plain = plain / s.factors.astype(np.float64)
    if local or s.scaling is None:
        return plain, 1.0
    if s.scaling[0] == "linear":
        return plain / s.scaling[1], 1.0
    _, factor, original, attn, fast, slow = s.scaling
    fast, slow, attn = fast or 32.0, slow or 1.0, attn or 1.0

    def pair_of(rotations):  # the pair that turns this often over the original context
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_of(fast)), 0), min(math.ceil(pair_of(slow)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp, float(np.float32(attn)) * (0.1 * math.log(factor) + 1)


def rotate(s, x, local):
    """x: [n, heads, dim]. `llama` files have the pairs side by side, the others the two halves."""
    freq, magnitude = rotary(s, local)
    angle = np.arange(x.shape[0])[:, None] * freq[None]
    cos, sin = (np.cos(angle) * magnitude)[:, None], (np.sin(angle) * magnitude)[:, None]
    out = np.empty_like(x)
    half = s.head_dim // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if s.arch == "llama" else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def gelu_table(x):
    """GELU as llama.cpp has it on a CPU: argument and value rounded to 16 bits within -10 to 10."""
    looked_up = gelu_tanh(x.astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)
    return np.where(x <= -10, 0, np.where(x >= 10, x, looked_up))


def attention(s, w, b, x, local):
    n = x.shape[0]
    def project(part, heads):
        y = x @ w[f"{b}attn_{part}.weight"].T
        if s.biases:
            y = y + w[f"{b}attn_{part}.bias"]
        return y.reshape(n, heads, s.head_dim)
    q, k, v = project("q", s.heads), project("k", s.kv_heads), project("v", s.kv_heads)
    if s.head_norms:
        q, k = rms_norm(q, w[b + "attn_q_norm.weight"], s.eps), rms_norm(k, w[b + "attn_k_norm.weight"], s.eps)
    q, k = rotate(s, q, local), rotate(s, k, local)
    group = s.heads // s.kv_heads
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(s.head_dim)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = (j <= i) & (i - j < s.window) if local else j <= i
    scores = np.where(seen[None], scores, -np.inf)
    out = np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(n, -1)
    return out @ w[b + "attn_output.weight"].T


def feed_forward(s, w, b, x, gelu):
    act = gelu if s.gemma else silu
    def gated(gate, up, down, x):
        return (act(x @ gate.T) * (x @ up.T)) @ down.T
    if not s.experts:
        return gated(*(w[f"{b}ffn_{p}.weight"] for p in ("gate", "up", "down")), x)
    chances = softmax(x @ w[b + "ffn_gate_inp.weight"].T)
    best = np.argsort(-chances, axis=-1, kind="stable")[:, :s.used]
    out = np.zeros_like(x)
    for row in range(x.shape[0]):
        p = chances[row, best[row]]
        for e, share in zip(best[row], p / p.sum()):
            out[row] += share * gated(*(w[f"{b}ffn_{m}_exps.weight"][e] for m in ("gate", "up", "down")), x[row])
    return out


def hidden(s, w, tokens, gelu=gelu_tanh):
    """The normed residual of every position."""
    x = w["token_embd.weight"][tokens] * (math.sqrt(s.width) if s.gemma else 1.0)
    for i in range(s.layers):
        b = f"blk.{i}."
        y = attention(s, w, b, rms_norm(x, w[b + "attn_norm.weight"], s.eps), s.is_local(i))
        x = x + (rms_norm(y, w[b + "post_attention_norm.weight"], s.eps) if s.gemma else y)
        y = feed_forward(s, w, b, rms_norm(x, w[b + "ffn_norm.weight"], s.eps), gelu)
        x = x + (rms_norm(y, w[b + "post_ffw_norm.weight"], s.eps) if s.gemma else y)
    return rms_norm(x, w["output_norm.weight"], s.eps)


def forward(s, w, tokens, gelu=gelu_tanh):
    head = w["token_embd.weight"] if s.tied else w["output.weight"]
    return hidden(s, w, tokens, gelu) @ head.T


def embedding(s, w, tokens):
    rows = hidden(s, w, tokens)
    pooled = rows.mean(0) if s.pooling == "MEAN" else rows[-1]
    return pooled / np.linalg.norm(pooled)


# ------------------------------------------------------------------------------------------------------------------ peer

def peer_outputs(path, tokens, betas=(None, None), pools=False):
    """Logits of every position from llama.cpp, or the vector of length 1 that it pools, as exact as it computes them."""
    import ctypes

    import llama_cpp as L

    log = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(log, ctypes.c_void_p(0))
    L.llama_backend_init()
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), mp)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    cp = L.llama_context_default_params()
    cp.n_ctx = 256
    cp.n_batch = cp.n_ubatch = 256
    cp.n_threads = cp.n_threads_batch = 1
    cp.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
    cp.type_k = cp.type_v = L.GGML_TYPE_F32
    # llama.cpp reads these two keys for some families only; they can be given to any.
    if betas[0] is not None:
        cp.yarn_beta_fast, cp.yarn_beta_slow = betas
    cp.embeddings = pools
    context = L.llama_init_from_model(model, cp)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    batch = L.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, t in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(t), i, 1, 1
        batch.seq_id[i][0] = 0
    if L.llama_decode(context, batch) != 0:
        raise SystemExit(f"llama.cpp cannot run {path}")
    if pools:
        out = np.ctypeslib.as_array(L.llama_get_embeddings_seq(context, 0), (L.llama_model_n_embd(model),)).copy()
        out /= np.linalg.norm(out)
    else:
        out = np.array([np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (vocab,)).copy() for i in range(len(tokens))])
    L.llama_batch_free(batch)
    L.llama_free(context)
    L.llama_model_free(model)
    return out


def worst(rows, reference):
    """The largest relative L2 distance of a row."""
    return np.array([(np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)).max()])


def make_embedding(s, exact, tokens, path, with_peer):
    vector = embedding(s, exact, tokens)
    distance = worst(peer_outputs(path, tokens, pools=True)[None], vector[None]) if with_peer else np.array([-1.0])
    np.savez_compressed(path.replace(".gguf", ".npz"), tokens=tokens, embedding=vector.astype(np.float32), peer_rel_l2=distance)
    print(f"{s.name:14} {os.path.getsize(path):7} bytes, a vector of {len(vector)}, peer_rel_l2 {distance[0]:.1e}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    ap.add_argument("--out", default=os.path.join(here, "..", "fixtures", "families"))
    ap.add_argument("--only", help="make only this model")
    ap.add_argument("--no-peer", action="store_true", help="do not ask llama.cpp")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for s in models():
        if a.only not in (None, s.name):
            continue
        weights, tokens = make_weights(s)
        path = os.path.join(a.out, s.name + ".gguf")
        exact = write(s, weights, path)
        if s.pooling:
            make_embedding(s, exact, tokens, path, not a.no_peer)
            continue
        logits = forward(s, exact, tokens)
        arrays = {"tokens": tokens, "logits": logits.astype(np.float32), "peer_rel_l2": np.array([-1.0])}
        if s.peer and not a.no_peer:
            betas = s.scaling[4:6] if s.scaling and s.scaling[0] == "yarn" else (None, None)
            peer = peer_outputs(path, tokens, betas).astype(np.float64)
            arrays["peer_rel_l2"] = worst(peer, logits)
            if s.gemma:
                arrays["peer_gelu_rel_l2"] = worst(peer, forward(s, exact, tokens, gelu_table))
        np.savez_compressed(os.path.join(a.out, s.name + ".npz"), **arrays)
        distances = ", ".join(f"{k} {v[0]:.1e}" for k, v in arrays.items() if k.startswith("peer"))
        print(f"{s.name:14} {os.path.getsize(path):7} bytes, logits of std {logits.std():.2f}, {distances}")


if __name__ == "__main__":
    main()
