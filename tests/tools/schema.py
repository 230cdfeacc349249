#!/usr/bin/env python3
"""Lets schemathesis try the interface as its OpenAPI document describes it: what fits must be taken, what does not fit must be
refused, and nothing may end in a server error.

    python tests/tools/schema.py target/release/strata

Needs `pip install schemathesis`; says so and ends with 77 (skipped) where it is missing. The seed is fixed, so a finding can
be had again.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

from serving import FIXTURES, SEEING, serving

if importlib.util.find_spec("schemathesis") is None:
    print("skipped: no module named schemathesis; pip install schemathesis")
    sys.exit(77)


EMBEDDER = FIXTURES / "families" / "qwen3-embed-last.gguf"


def check(binary, *flags):
    """The exit status of schemathesis, run against a server with `flags`."""
    # What it keeps of its findings goes with the folder that it runs in.
    with tempfile.TemporaryDirectory() as folder, serving(binary, *flags, "--temp", "0", "--threads", "2") as address:
        command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", f"{address}/openapi.json", "--seed", "20261130"]
        # One worker: hypothesis changes the interpreter's recursion limit, which several threads of CPython 3.11 do not survive.
        # The numbers of the metrics page are no JSON, and its format has a checker of its own in the tests.
        command += ["--max-examples", "15", "--workers", "1", "--request-timeout", "60", "--exclude-path", "/metrics"]
        return subprocess.run(command, check=False, cwd=folder).returncode


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    sys.exit(check(binary) or check(binary, *SEEING) or check(binary, "-m", str(EMBEDDER)))


if __name__ == "__main__":
    main()
