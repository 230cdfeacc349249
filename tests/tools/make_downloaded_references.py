#!/usr/bin/env python3
"""Records what llama.cpp says on a few prompts of the two models that tests/downloaded.rs uses when they are there.

  pip install numpy llama-cpp-python==0.3.36
  python3 tests/tools/make_downloaded_references.py [--models target/test-models] [--out tests/fixtures/families]

For each model MODEL.gguf: downloaded-MODEL.npz with, for each prompt i,
  p{i}_tokens   int32 [n]      the prompt, as llama.cpp cuts it
  p{i}_argmax   int32 [n]      the most likely token after each position
  p{i}_margin   float32 [n]    how far its logit is above the second
  p{i}_next     float32 [n-1]  log-probability of the prompt's own next token
  p{i}_text     uint8          the prompt in UTF-8
llama.cpp runs with float32 keys and values and flash attention off; its products of quantised matrices have 8-bit
activations, so its logits are a neighbour to compare with and no reference.
"""
import argparse
import ctypes
import os

import numpy as np

MODELS = ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"]
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who lived in a small house at the edge of the forest. Every morning she",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Water boils at 100 degrees Celsius, which is 212 degrees Fahrenheit. Ice melts at 0 degrees Celsius, which is",
    "Roses are red, violets are blue,\n\n1, 2, 3, 4, 5, 6, 7,",
]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--models", default=os.path.join(here, "..", "..", "target", "models"))
    ap.add_argument("--out", default=os.path.join(here, "..", "fixtures", "families"))
    a = ap.parse_args()
    import llama_cpp as L

    log = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(log, ctypes.c_void_p(0))
    L.llama_backend_init()
    for name in MODELS:
        mp = L.llama_model_default_params()
        mp.n_gpu_layers = 0
        model = L.llama_model_load_from_file(os.path.join(a.models, name + ".gguf").encode(), mp)
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch = 512, 512, 512
        cp.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        cp.type_k = cp.type_v = L.GGML_TYPE_F32
        context = L.llama_init_from_model(model, cp)
        vocab = L.llama_model_get_vocab(model)
        size = L.llama_vocab_n_tokens(vocab)
        arrays = {}
        for i, text in enumerate(PROMPTS):
            data = text.encode()
            buffer = (L.llama_token * 512)()
            n = L.llama_tokenize(vocab, data, len(data), buffer, 512, True, False)
            batch = L.llama_batch_init(n, 0, 1)
            batch.n_tokens = n
            for j in range(n):
                batch.token[j], batch.pos[j], batch.n_seq_id[j], batch.logits[j] = buffer[j], j, 1, 1
                batch.seq_id[j][0] = 0
            L.llama_memory_clear(L.llama_get_memory(context), True)
            assert L.llama_decode(context, batch) == 0
            logits = np.array([np.ctypeslib.as_array(L.llama_get_logits_ith(context, j), (size,)).copy() for j in range(n)])
            top = logits.max(1, keepdims=True)
            logprobs = logits - top - np.log(np.exp((logits - top).astype(np.float64)).sum(1, keepdims=True))
            best = np.sort(logits, axis=1)[:, -2:]
            arrays[f"p{i}_tokens"] = np.array(buffer[:n], np.int32)
            arrays[f"p{i}_argmax"] = logits.argmax(1).astype(np.int32)
            arrays[f"p{i}_margin"] = (best[:, 1] - best[:, 0]).astype(np.float32)
            arrays[f"p{i}_next"] = logprobs[np.arange(n - 1), buffer[1:n]].astype(np.float32)
            arrays[f"p{i}_text"] = np.frombuffer(data, np.uint8)
            L.llama_batch_free(batch)
        np.savez_compressed(os.path.join(a.out, f"downloaded-{name}.npz"), **arrays)
        print(name, {k: v.shape for k, v in arrays.items() if k.endswith("argmax")})
        L.llama_free(context)
        L.llama_model_free(model)


if __name__ == "__main__":
    main()
