#!/usr/bin/env python3
"""What HTTP costs: decode speed through `strata serve` against `strata bench`, and the time to the first token of a prompt
that is cached.

  over_http.py --strata target/release/strata -m FILE [-n 500] [-t 2] [--rounds 5]

Needs Python alone. Each round measures once with HTTP and once without, so that a change of the machine's speed meets both, and the order changes from round to round. The client runs on the same machine
and is part of the cost. Printed: the median of the ratios round by round with its quartiles, and the first token's time with that of one window of one row, which it contains.
"""
import argparse
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "tools"))
from serving import serving  # noqa: E402


# Real-time priority (`chrt -f 10`) may take 95 % of a second; a rest before each run keeps all of them below that.
PAUSE_SECONDS = 1.0
TEXT = re.compile(rb'content":"[^"]')


def stream(address, messages, tokens):
    """Seconds to the first token, tokens a second from the first to the last, what the server says of the latter, prompt."""
    place = urllib.parse.urlparse(address)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    body = {"messages": messages, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    body["stream_options"] = {"include_usage": True}
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    pieces, arrived = [], []
    # Looked at as little as possible while it arrives: what the client does counts as cost of HTTP.
    while piece := reply.read1(1 << 16):
        arrived.append(time.perf_counter())
        pieces.append(piece)
    connection.close()
    # The role comes before anything is computed, with an empty text.
    first = next(at for at, piece in zip(arrived, pieces) if TEXT.search(piece))
    last = arrived[-1]
    chunks = [json.loads(line[6:]) for line in b"".join(pieces).splitlines() if line.startswith(b"data: {")]
    usage = next(chunk["usage"] for chunk in chunks if chunk.get("usage"))
    timings = next(chunk["timings"] for chunk in chunks if chunk.get("timings"))
    if usage["completion_tokens"] != tokens:
        raise SystemExit(f"{usage['completion_tokens']} tokens instead of {tokens}")
    return first - start, (tokens - 1) / (last - first), timings["predicted_per_second"], usage["prompt_tokens"]


def bench(binary, model, depth, tokens, threads):
    """Tokens a second without HTTP, after as many tokens as the prompt has."""
    command = [binary, "bench", "-m", model, "-p", "0", "-n", str(tokens), "-d", str(depth), "-t", str(threads), "-r", "1", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["results"][0]["median_tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strata", default="target/release/strata")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-n", "--tokens", type=int, default=500)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    messages = [{"role": "user", "content": "The red box holds a key. " * 40 + "What does it hold?"}]
    ratios, inside, firsts = [], [], []
    flags = ("-m", args.model, "-t", str(args.threads), "-c", "2048", "--parallel", "1")
    with serving(args.strata, *flags) as address:
        depth = stream(address, messages, 2)[3]

    def plain_rate():
        time.sleep(PAUSE_SECONDS)
        return bench(args.strata, args.model, depth, args.tokens, args.threads)

    for turn in range(args.rounds):
        before = plain_rate() if turn % 2 else None
        time.sleep(PAUSE_SECONDS)
        # A server of its own for every round: how a process lies in memory changes its speed by more than HTTP does.
        with serving(args.strata, *flags) as address:
            stream(address, messages, args.tokens)
            time.sleep(PAUSE_SECONDS)
            first, rate, said, _ = stream(address, messages, args.tokens)
        plain = before or plain_rate()
        ratios.append(rate / plain)
        inside.append(said / plain)
        firsts.append((1000 * first, 1000 / rate))
    for name, ratio in [("decode through HTTP / bench", ratios), ("decode as the server counts it / bench", inside)]:
        low, middle, high = statistics.quantiles(ratio, n=4)
        print(f"{name}: {middle:.3f} (quartiles {low:.3f} and {high:.3f})")
    beyond = statistics.median(first - window for first, window in firsts)
    print(f"first token of a cached prompt of {depth}: {statistics.median(f for f, _ in firsts):.1f} ms, of these beyond a window of "
          f"one row: {beyond:.1f} ms")


if __name__ == "__main__":
    main()
