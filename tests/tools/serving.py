"""A `strata serve` for the time of a `with` block, for the scripts beside this one."""

import contextlib
import pathlib
import re
import subprocess
import threading

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
PICTURES = FIXTURES / "pictures"
# The tiny vision encoder, which fits the built-in model. Its weights are random: what is seen means nothing.
SEEING = ("--vision-file", str(FIXTURES / "vision" / "tiny-vision.gguf"), "--vision-tokens", "35")


@contextlib.contextmanager
def serving(binary, *flags):
    """Yields the address of a server on a free port. It is ended like a user would, and must end well."""
    command = [binary, "serve", "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = []
    try:
        address = None
        for line in server.stderr:
            said.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                address = found.group(1)
                break
        if address is None:
            raise SystemExit(f"the server did not start: {''.join(said)}")
        # A pipe that nobody reads would stop the server one day.
        threading.Thread(target=lambda: said.extend(server.stderr), daemon=True).start()
        yield address
        if server.poll() is not None:
            raise SystemExit(f"the server ended by itself with {server.returncode}: {''.join(said[-20:])}")
    finally:
        server.terminate()
        code = server.wait(timeout=20)
    if code != 0:
        raise SystemExit(f"the server was asked to end and ended with {code}: {''.join(said[-20:])}")
