#!/usr/bin/env python3
"""What HTTP costs: decode speed through `strata serve` against `strata bench`, and the time to the first token of a prompt
that is cached.

  over_http.py --strata target/release/strata -m FILE [-n 128] [-t 2] [--rounds 5]

Needs Python alone. Each round measures both, one after the other, so that a change of the machine's speed meets both. Printed:
the median of the ratios round by round with their least and greatest, and the first token's time with that of one window of
one row, which it contains.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "tools"))
from serving import serving  # noqa: E402


def stream(address, prompt, tokens):
    """Seconds to the first token, tokens a second between the first and the last, tokens of the prompt."""
    place = urllib.parse.urlparse(address)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    body["stream_options"] = {"include_usage": True}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    depth, first, last = 0, None, None
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        depth = (chunk.get("usage") or {}).get("prompt_tokens", depth)
        if chunk["choices"]:
            last = time.perf_counter()
            first = first or last
    connection.close()
    return first - start, (tokens - 1) / (last - first), depth


def bench(binary, model, depth, tokens, threads):
    """Tokens a second without HTTP, after as many tokens as the prompt has."""
    command = [binary, "bench", "-m", model, "-p", "0", "-n", str(tokens), "-d", str(depth), "-t", str(threads), "-r", "1", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["results"][0]["median_tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strata", default="target/release/strata")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    prompt = "The red box holds a key. " * 40
    ratios, firsts = [], []
    with serving(args.strata, "-m", args.model, "-t", str(args.threads), "-c", "2048", "--parallel", "1") as address:
        stream(address, prompt, args.tokens)
        for _ in range(args.rounds):
            first, rate, depth = stream(address, prompt, args.tokens)
            ratios.append(rate / bench(args.strata, args.model, depth, args.tokens, args.threads))
            firsts.append((1000 * first, 1000 / rate))
    print(f"decode through HTTP / bench: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    beyond = [first - window for first, window in firsts]
    print(f"first token of a cached prompt: {statistics.median(f for f, _ in firsts):.1f} ms, of these beyond a window of one row: "
          f"{statistics.median(beyond):.1f} ms")


if __name__ == "__main__":
    main()
