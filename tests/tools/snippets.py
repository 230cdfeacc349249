#!/usr/bin/env python3
"""Runs the snippets of the README that need nothing but curl and the official Python packages, as they stand there.

    python tests/tools/snippets.py target/release/strata

Needs curl, Python 3.11 and `pip install openai anthropic`; says so and ends with 77 (skipped) where they are missing. Settings of programs are
read: TOML and YAML must be well-formed and name the server's address.
"""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

from serving import SEEING, serving

missing = [name for name in ("openai", "anthropic", "tomllib") if importlib.util.find_spec(name) is None]
missing += [] if shutil.which("curl") else ["curl"]
if missing:
    print(f"skipped: no {', '.join(missing)}")
    sys.exit(77)

import tomllib  # noqa: E402

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "127.0.0.1:8080"


def snippets():
    """(language, text) of every block of the section."""
    section = re.search(r"^## For other programs\n(.*?)^## ", README.read_text(), re.M | re.S).group(1)
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S)


def answer(language, text, address):
    """What a snippet prints, or nothing if it is no command that can be run here."""
    text = text.replace(ADDRESS, address.removeprefix("http://"))
    if language == "python":
        command = [sys.executable, "-c", text]
    elif language == "sh" and text.startswith("curl "):
        command = ["sh", "-ec", text.replace("curl ", "curl -sS --fail-with-body ", 1)]
    else:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"a snippet failed with {done.returncode}:\n{text}{done.stdout}{done.stderr}")
    return done.stdout


def main():
    found = snippets()
    with serving(sys.argv[1], "--temp", "0", "--threads", "2", *SEEING) as address:
        said = [said for language, text in found if (said := answer(language, text, address)) is not None]
    assert len(said) == 4, f"curl, openai, anthropic and a picture: {len(said)} snippets were run"
    for text in said:
        # What streams comes in pieces.
        assert "Paris" in text or "Paris" in "".join(re.findall(r'"content":"([^"]*)"', text)), text
    settings = [tomllib.loads(text) for language, text in found if language == "toml"]
    assert [s["model_providers"][s["model_provider"]]["base_url"] for s in settings] == [f"http://{ADDRESS}/v1"]
    assert any(language == "yaml" and f"apiBase: http://{ADDRESS}/v1" in text for language, text in found)
    print(f"ok: {len(said)} of {len(found)} snippets were run")


if __name__ == "__main__":
    main()
