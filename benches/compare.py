#!/usr/bin/env python3
"""Prompt and decode speed of Strata against llama.cpp: same file, same threads, one machine, runs in turn.

  compare.py --strata target/release/strata -m FILE [-p 512] [-n 64] [-t 2] [--rounds 5] [--device vulkan:0]

The peer is the llama.cpp inside the PyPI package llama-cpp-python (pip install llama-cpp-python numpy), with flash
attention off, which is its fair setting on a CPU. Each round runs both engines in a process of their own, one after the
other, so that a change of the machine's speed meets both. Printed: median of each, and the median of the ratios round by
round with their least and greatest.

With --device both run on that card, the peer by the GPU backend that its package was built with, all layers on the card. For
Vulkan: CMAKE_ARGS=-DGGML_VULKAN=ON pip install --no-binary llama-cpp-python llama-cpp-python (needs glslc, spirv-headers and
Vulkan headers of 1.3.272 or newer). The peer takes a software driver only where GGML_VK_VISIBLE_DEVICES names it, which is
done here; it says on which device it ran.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time


def peer(path, prompt, generate, threads, device):
    """One run of llama.cpp in this process: prompt tokens/s, decode tokens/s, the device it named."""
    import ctypes

    if device:
        os.environ["GGML_VK_VISIBLE_DEVICES"] = device.partition(":")[2] or "0"
    import llama_cpp as L

    used = []
    offloaded = re.compile(r"using device (.*?) - |offloaded (\d+/\d+) layers")
    keep = L.llama_log_callback(lambda _level, text, _data: used.extend(m.group(0) for m in offloaded.finditer(text.decode())))
    L.llama_log_set(keep, ctypes.c_void_p(0))
    L.llama_backend_init()
    model_params = L.llama_model_default_params()
    model_params.n_gpu_layers = 999 if device else 0
    model = L.llama_model_load_from_file(path.encode(), model_params)
    params = L.llama_context_default_params()
    params.n_ctx = prompt + generate + 16
    params.n_batch = params.n_ubatch = max(prompt, 32)
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    tokens = [(i * 7919 + 13) % min(vocab, 2000) for i in range(prompt)]
    memory = L.llama_get_memory(context)

    def decode(ids):
        array = (L.llama_token * len(ids))(*ids)
        if L.llama_decode(context, L.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        L.llama_synchronize(context)

    decode(tokens)
    decode([1])
    L.llama_memory_clear(memory, True)
    start = time.perf_counter()
    decode(tokens)
    prompt_s = time.perf_counter() - start
    L.llama_memory_clear(memory, True)
    decode(tokens[:1])
    start = time.perf_counter()
    for i in range(generate):
        decode([tokens[i % prompt]])
    if device and not used:
        raise SystemExit("llama.cpp used no card: its package was built without a GPU backend")
    return prompt / prompt_s, generate / (time.perf_counter() - start), ", ".join(used)


def strata(binary, path, prompt, generate, threads, device):
    command = [binary, "bench", "-m", path, "-p", str(prompt), "-n", str(generate), "-t", str(threads), "-r", "1", "--json"]
    command += ["--device", device] if device else []
    out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    speeds = {result["test"]: result["median_tokens_per_second"] for result in out["results"]}
    return speeds[f"pp{prompt}"], speeds[f"tg{generate}"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--strata", default="target/release/strata")
    ap.add_argument("-m", "--model", required=True)
    ap.add_argument("-p", "--prompt", type=int, default=512)
    ap.add_argument("-n", "--generate", type=int, default=64)
    ap.add_argument("-t", "--threads", type=int, default=2)
    ap.add_argument("--device", help="a card for both, by Strata's name of it: vulkan:0")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--peer-only", action="store_true", help="one run of the peer, as JSON")
    a = ap.parse_args()
    if a.peer_only:
        print(json.dumps(peer(a.model, a.prompt, a.generate, a.threads, a.device)))
        return
    ours, theirs = [], []
    for _ in range(a.rounds):
        ours.append(strata(a.strata, a.model, a.prompt, a.generate, a.threads, a.device))
        command = [sys.executable, __file__, "--peer-only", "-m", a.model, "-p", str(a.prompt), "-n", str(a.generate)]
        command += ["--device", a.device] if a.device else []
        out = subprocess.run(command + ["-t", str(a.threads)], check=True, capture_output=True, text=True).stdout
        theirs.append(json.loads(out.splitlines()[-1]))
    if theirs[0][2]:
        print(f"llama.cpp: {theirs[0][2]}")
    for i, what in enumerate(["prompt", "decode"]):
        mine, peers = [r[i] for r in ours], [r[i] for r in theirs]
        ratios = [m / p for m, p in zip(mine, peers)]
        print(f"{what}: strata {statistics.median(mine):.1f} tok/s, llama.cpp {statistics.median(peers):.1f} tok/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {a.rounds} rounds)")


if __name__ == "__main__":
    main()
