"""The same figures of nvitop and nvtop, where they are installed: the same faked driver, terminal and keys.

python -m benchmarks.peers [SECONDS]        # NVITOP and NVTOP may name the programs
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.alone import alone
from benchmarks.processes import family
from benchmarks.scene import Scene
from benchmarks.terminal import Terminal
from benchmarks.watching import SIZES, Spans, first_frame_seconds, size_word, watch

ONE_SECOND = {"nvitop": ["--interval", "1"], "nvtop": ["--delay", "10"]}
"""What asks each of them for an update a second; nvtop counts in tenths."""


def find(name: str) -> str | None:
    """Find a program: by the variable of its name in capitals, else the PATH."""
    return shutil.which(os.environ.get(name.upper()) or name)


def measure(
    idle_seconds: float = 12.0, *, spans: Spans | None = None, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """For each program: None where it is not installed, else its version and its figures for each size."""
    spans = spans or Spans(idle_seconds=idle_seconds, keys_seconds=8.0, warm_seconds=1.0)
    return {name: _measure(name, program, spans, sizes) if (program := find(name)) else None for name in ONE_SECOND}


def _measure(name: str, program: str, spans: Spans, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    outcome: dict[str, Any] = {"version": version.split()[-1] if version.split() else "unknown"}
    with Scene() as scene:
        # A home of its own: whoever runs this keeps their settings out of it, and unchanged.
        environment = {**scene.environment, "HOME": str(scene.folder)}
        for columns, rows in sizes:
            argv = [program, *ONE_SECOND[name]]
            with Terminal(argv, columns=columns, rows=rows, environment=environment) as terminal:
                first = first_frame_seconds(terminal)
                time.sleep(spans.warm_seconds)
                figures = watch(terminal, scene, {name: family([terminal.pid])}, spans)
                outcome[size_word(columns, rows)] = {"first_frame_seconds": first, **figures}
    return outcome


if __name__ == "__main__":
    alone(measure)
