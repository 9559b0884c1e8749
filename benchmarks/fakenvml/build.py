"""Building the fake libnvidia-ml.so.1 and talking to it.

python -m benchmarks.fakenvml.build DIR      # prints the directory to put into LD_LIBRARY_PATH
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("fakenvml.c")
LIBRARY = "libnvidia-ml.so.1"
_RECORD = struct.Struct("56sQ")


class BuildError(Exception):
    """The library cannot be built here; the text says why."""


class NoCompilerError(BuildError):
    """There is nothing to build it with."""


def build(target_dir: Path) -> Path:
    """Build the library below ``target_dir``, once for each version of its source. Returns the directory that
    LD_LIBRARY_PATH must name when a process starts, so that it loads this library instead of a driver's.

    Raises BuildError.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc or clang) is installed")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    directory = target_dir / f"fakenvml-{digest}"
    library = directory / LIBRARY
    if library.exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as unfinished:
        pass
    flags = ["-O2", "-Wall", "-shared", "-fPIC", "-Wl,-soname," + LIBRARY]
    command = [compiler, *flags, "-o", unfinished.name, str(SOURCE), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        Path(unfinished.name).unlink()
        raise BuildError(f"{compiler} failed: {done.stderr.strip()[:500]}")
    Path(unfinished.name).replace(library)
    return directory


class FakeNvml:
    """One configuration of the library, and the counters of the processes that use it."""

    def __init__(self, library_dir: Path, directory: Path) -> None:
        self._library_dir = library_dir
        self._config = directory / "fakenvml.conf"
        self._counters = directory / "calls"
        self._counters.mkdir(parents=True, exist_ok=True)
        self._versions = itertools.count(1)
        self.configure(())

    def environment(self, eager: bool = False) -> dict[str, str]:
        """The environment that a process needs from its start. An eager library sees a new
        configuration with the next call, at the price of looking for it before each."""
        return {
            "LD_LIBRARY_PATH": str(self._library_dir),
            "FAKE_NVML_CONFIG": str(self._config),
            "FAKE_NVML_COUNTERS": str(self._counters),
            **({"FAKE_NVML_EAGER": "1"} if eager else {}),
        }

    def configure(self, lines: Iterable[str]) -> None:
        """Replace the configuration (its lines are described at the head of fakenvml.c); processes that run see it
        within 20 ms of their next call."""
        unfinished = self._config.with_suffix(".new")
        unfinished.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        # The library looks at the time of the file, whose resolution alone may be too coarse for two quick changes.
        stamp = time.time_ns() + next(self._versions)
        os.utime(unfinished, ns=(stamp, stamp))
        unfinished.replace(self._config)

    def calls(self, pid: int) -> dict[str, int]:
        """Calls so far of a process, by function. Empty when it never loaded the library."""
        try:
            data = (self._counters / f"{pid}.calls").read_bytes()
        except FileNotFoundError:
            return {}
        counts = {}
        for name, count in _RECORD.iter_unpack(data):
            text = name.rstrip(b"\0").decode()
            if not text:
                break
            counts[text] = count
        return counts


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1])))
    except (BuildError, IndexError) as error:
        sys.exit(f"fakenvml: {error or 'name a directory'}")
