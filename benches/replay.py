#!/usr/bin/env python3
"""How far the tokens a second that `strata replay` predicts are from those that the engine then shows.

Records a trace with one number of expert slots, lets `replay` predict others, and runs them: interleaved, medians.

    chrt -f 10 benches/replay.py target/release/strata model.gguf card.toml --slots 16,32,48,64

The machine file needs a card that has room for the most slots; --expert-slots then makes it hold fewer.
"""
import argparse
import json
import statistics
import subprocess
import tempfile

PROMPT = "Once upon a time there was a river that ran through a valley, and in the valley stood a mill."


def strata(binary, *args):
    done = subprocess.run([binary, *args], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)}: {done.stderr}")
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("machine")
    parser.add_argument("--slots", default="16,32,48,64", help="slots of a layer; the trace has the second of them")
    parser.add_argument("--tokens", default="64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--swaps", default="2")
    args = parser.parse_args()
    slots = [int(n) for n in args.slots.split(",")]
    planned = json.loads(strata(args.binary, "plan", "-m", args.model, "--machine", args.machine, "--json").stdout)
    layers = sum(len(stage["held"]) for stage in planned["plan"]["stages"])

    def flags(count):
        wish = ["--expert-slots", str(count * layers), "--expert-swaps", args.swaps]
        run = ["--raw", "--temp", "0", "--ignore-eos", "-n", args.tokens, "--ctx-size", "512"]
        return ["-m", args.model, "--machine", args.machine, *wish, *run]

    recorded = slots[min(1, len(slots) - 1)]
    with tempfile.NamedTemporaryFile(suffix=".trace") as trace:
        strata(args.binary, "trace", "-o", trace.name, *flags(recorded), PROMPT)
        lines = json.loads(strata(args.binary, "replay", trace.name, "--slots", args.slots, "--json").stdout)
    predicted = {line["slots"]: line["decode_tokens_per_second"] for line in lines}
    hits = {line["slots"]: line["card_hit_rate"] for line in lines}
    measured = {count: [] for count in slots}
    for _ in range(args.rounds):
        for count in slots:
            report = json.loads(strata(args.binary, "run", "--json", *flags(count), PROMPT).stdout)["report"]
            measured[count].append((report["decode_tokens_per_second"], report["tiers"]["card_hit_rate"]))
    print(f"trace with {recorded} slots a layer, {args.tokens} tokens, {args.rounds} rounds")
    print("| slots | hits predicted | hits | tok/s predicted | tok/s | min | max | off by |")
    print("| ----: | -------------: | ---: | --------------: | ----: | --: | --: | -----: |")
    for count in slots:
        rates = [rate for rate, _ in measured[count]]
        rate, hit = statistics.median(rates), measured[count][0][1]
        off = 100 * (predicted[count] / rate - 1)
        print(
            f"| {count} | {100 * hits[count]:.2f} % | {100 * hit:.2f} % | {predicted[count]:.2f} | {rate:.2f} "
            f"| {min(rates):.2f} | {max(rates):.2f} | {off:+.1f} % |"
        )


if __name__ == "__main__":
    main()
