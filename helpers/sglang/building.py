"""How an environment of real software comes to be in the cache: one build at a time, whole or not at all, errors in one line.

Every folder is built under a temporary name, gets its marker, and is renamed: a build that was interrupted leaves nothing that
is used, and the next one starts that folder again.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers.errors import InputError
from helpers.sglang.environments import MARKER, home, marker

GB = 1 << 30

_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish|Name or service not known|name resolution|timed out|ProxyError|Max retries|SSLError"
    r"|Connection (?:refused|reset)|Network is unreachable",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


@contextlib.contextmanager
def one_build_at_a_time(say: Callable[[str], None]) -> Iterator[None]:
    """Holds the cache's lock, waiting for it; removes what interrupted builds left. InputError when the cache cannot be written."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        lock = (home() / ".lock").open("w")
    except OSError as error:
        raise InputError(f"{home()}: cannot be written ({error.strerror}); set NVFP4_CACHE to a folder that can") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running in this cache; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in home().glob("*.building"):
            say(f"{left.name} was left by a build that did not finish: removed")
            shutil.rmtree(left)
        yield


def needs(size: int, what: str):
    """InputError when the disk has fewer than `size` bytes free for `what`."""
    free = shutil.disk_usage(home()).free
    if free < size:
        raise InputError(
            f"{what} needs {size / GB:.1f} GB while it is built and {home()} has {free / GB:.1f} GB free: make room, or set NVFP4_CACHE"
        )


@contextlib.contextmanager
def new_folder(final: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder under a temporary name that becomes `final` when the block ends well, and is removed otherwise."""
    start = time.monotonic()
    if final.exists():
        say(f"{final.name} is there without its marker {MARKER}: removed and built again")
        shutil.rmtree(final)
    building = final.with_name(final.name + ".building")
    try:
        building.mkdir()
        yield building
        if marker(building) is None:
            raise AssertionError(f"{building} was built without its marker")
        building.rename(final)
    except OSError as error:
        raise InputError(f"{final}: {error.strerror or error}; nothing was kept of it") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    say(f"  {final.name}: done in {time.monotonic() - start:.0f} s")


def mark(folder: Path, **facts):
    """Notes in a folder that it is whole, and of which versions."""
    (folder / MARKER).write_text(json.dumps({**facts, "built": time.strftime("%Y-%m-%d")}, indent=1) + "\n")


def make_venv(folder: Path) -> str:
    """A virtual environment in `folder`, of $NVFP4_PYTHON or else of this interpreter; the path of its Python."""
    python = os.environ.get("NVFP4_PYTHON") or sys.executable
    made = subprocess.run([python, "-m", "venv", str(folder)], capture_output=True, text=True)
    if made.returncode != 0:
        raise InputError(f"{python} cannot make a virtual environment: {last_line(made.stderr or made.stdout)}")
    return str(folder / "bin" / "python")


def pip(python: str, *arguments: str, what: str) -> str:
    """Runs that Python's pip; InputError in one line when it fails."""
    asked = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True)
    if asked.returncode != 0:
        raise pip_failed(asked.stdout + asked.stderr, what)
    return asked.stdout


def pip_failed(output: str, what: str) -> InputError:
    """What pip printed, as one line about `what`: no room, no network, or its last words."""
    if _NO_SPACE.search(output):
        return InputError(f"{what}: the disk filled up while it was installed in {home()}: make room, or set NVFP4_CACHE")
    if _NO_NETWORK.search(output) or "(from versions: none)" in output:
        return InputError(f"{what}: no package index answers: check the network, or build where there is one and copy {home()}")
    return InputError(f"{what}: pip failed: {last_line(output)}")


def last_line(text: str) -> str:
    """The last line that says something, cut at 300 characters."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it printed nothing"
