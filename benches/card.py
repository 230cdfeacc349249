#!/usr/bin/env python3
"""Correctness and speed of every card of this PC, with a program that is built already; needs nothing but Python.

  card.py target/release/strata [FILE.gguf ...]

Without files the built-in model is used, else that one and the files. For each model and card: the scores of a text against those of
the processor (relative distance, largest Kullback-Leibler divergence, how often the best token is the same), whether the card gives
the same bits twice, tokens a second of prompts and of decoding, and the GB/s of decoding as a share of the card's own bandwidth, as
`strata devices` measured it. Ends with 1 where a card is further from the processor than rounding explains, and with 77 where
there is no card.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

TEXT = (
    "The quick brown fox jumps over the lazy dog. A memory plan says how many bytes go where before anything is taken. "
    "Paris is the capital of France, and water boils at a hundred degrees."
)
# Kernels round activations to two bytes and keys and values to float16, and add in another order than the processor.
MOST_RELATIVE, MOST_KL = 1e-2, 1e-3


def run(program, *arguments):
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"strata {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def scores(program, model, device, folder, *more):
    """Rows of the scores of TEXT."""
    path = os.path.join(folder, "scores.npy")
    run(program, "logits", *model, "--device", device, "--text", TEXT, "-o", path, *more)
    with open(path, "rb") as file:
        magic = file.read(8)
        length = struct.unpack("<H", file.read(2))[0] if magic[6] == 1 else struct.unpack("<I", file.read(4))[0]
        header = file.read(length).decode()
        rows, width = (int(n) for n in header[header.index("(") + 1 : header.index(")")].split(",") if n.strip())
        values = struct.unpack(f"<{rows * width}f", file.read(4 * rows * width))
    return [values[r * width : (r + 1) * width] for r in range(rows)]


def log_softmax(row):
    top = max(row)
    total = math.log(sum(math.exp(x - top) for x in row))
    return [x - top - total for x in row]


def distance(found, expected):
    """Relative L2, largest KL, and the share of equal best tokens."""
    difference = sum((a - b) ** 2 for f, e in zip(found, expected) for a, b in zip(f, e))
    norm = sum(b * b for e in expected for b in e)
    most, equal = 0.0, 0
    for f, e in zip(found, expected):
        p, q = log_softmax(e), log_softmax(f)
        most = max(most, sum(math.exp(a) * (a - b) for a, b in zip(p, q)))
        equal += max(range(len(f)), key=f.__getitem__) == max(range(len(e)), key=e.__getitem__)
    return math.sqrt(difference / norm), most, equal / len(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strata")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", help="only this one")
    given = parser.parse_args()
    found = json.loads(run(given.strata, "devices", "--json"))
    cards = [card for card in found["cards"] if card["id"] == given.device or (not given.device and card["id"][:4] in ("cuda", "hip:"))]
    if not cards:
        print("MISSING: no card of NVIDIA or AMD:", json.dumps(found.get("absent", [])))
        return 77
    failed = False
    print("| model | card | relative L2 | largest KL | same best token | same bits | prompt tok/s | decode tok/s | GB/s | of the card |")
    print("| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for model in [[], *(["-m", path] for path in given.models)]:
            expected = scores(given.strata, model, "cpu", folder)
            for card in cards:
                rows = scores(given.strata, model, card["id"], folder)
                relative, kl, equal = distance(rows, expected)
                step = scores(given.strata, model, card["id"], folder, "--step")
                relative_step, kl_step, _ = distance(step, expected)
                same = rows == scores(given.strata, model, card["id"], folder)
                failed |= max(relative, relative_step) > MOST_RELATIVE or max(kl, kl_step) > MOST_KL or not same
                bench = json.loads(run(given.strata, "bench", *model, "--device", card["id"], "-p", "512", "-n", "128", "--json"))
                prompt, decode = bench["results"]
                rate = card.get("memory_gbs")
                share = f"{100 * decode['gb_per_second'] / rate:.0f} %" if rate else "-"
                print(
                    f"| {bench['model']} | {card['id']} {card['name']} | {max(relative, relative_step):.1e} | {max(kl, kl_step):.1e} "
                    f"| {100 * equal:.0f} % | {'yes' if same else 'no'} | {prompt['median_tokens_per_second']:.0f} "
                    f"| {decode['median_tokens_per_second']:.1f} | {decode['gb_per_second']:.2f} | {share} |",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
