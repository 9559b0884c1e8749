"""A program on a terminal, watched: once left alone, once with a key each second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from benchmarks.processes import CpuMeter, memory
from benchmarks.scene import Scene
from benchmarks.terminal import KEY_DOWN, KEY_UP, Replay, Terminal

SIZES = ((80, 24), (200, 50))
KEYS = (KEY_DOWN, KEY_DOWN, KEY_DOWN, KEY_UP, KEY_UP, KEY_UP)
SETTLED_SECONDS = 0.8
"""Before the second of two updates a second apart, with which some programs begin to draw curves."""
LONGEST_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Spans:
    """The length of each part of a measurement."""

    warm_seconds: float = 4.0
    idle_seconds: float = 20.0
    keys_seconds: float = 12.0


def size_word(columns: int, rows: int) -> str:
    return f"{columns}x{rows}"


def watch(terminal: Terminal, scene: Scene, groups: dict[str, list[int]], spans: Spans) -> dict[str, Any]:
    """CPU (percent of one core), memory, bytes and calls to the driver a second of a program that has warmed up.
    ``groups`` names its processes and those that work for it."""
    idle = _window(terminal, scene, groups, spans.idle_seconds, pressing=False)
    keys = _window(terminal, scene, groups, spans.keys_seconds, pressing=True)
    used = {name: memory(pids) for name, pids in groups.items()}
    return {
        "idle": idle,
        "keys": keys,
        "rss_bytes": sum(process.rss_bytes for process in used.values()),
        "pss_bytes": sum(process.pss_bytes for process in used.values()),
        "rss_bytes_by_process": {name: process.rss_bytes for name, process in used.items()},
    }


def first_frame_seconds(terminal: Terminal, texts: Sequence[str] = ()) -> float:
    """From the start of the program to its first complete screen. SETTLED_SECONDS after its first output its screen
    counts as settled.

    Raises ValueError when one of ``words`` is not on the settled screen.
    """
    terminal.wait_for_output(LONGEST_START_SECONDS)
    time.sleep(SETTLED_SECONDS)
    replay = Replay(terminal.take_output(), columns=terminal.columns, rows=terminal.rows)
    missing = [word for word in texts if word not in replay.final_text]
    if missing:
        raise ValueError(f"{missing[0]!r} is not on the screen:\n{replay.final_text}")
    return replay.first_complete() - terminal.started_at


def _window(
    terminal: Terminal, scene: Scene, groups: dict[str, list[int]], seconds: float, *, pressing: bool
) -> dict[str, float]:
    terminal.take_output()
    keys = cycle(KEYS)
    everybody = [pid for pids in groups.values() for pid in pids]

    def calls() -> int:
        return sum(scene.nvml_calls(everybody).values())

    bytes_before = terminal.bytes_written
    calls_before = calls()
    began_at = time.monotonic()
    meter = CpuMeter(groups)
    next_key_at = began_at
    while (now := time.monotonic()) < began_at + seconds:
        if pressing and now >= next_key_at:
            terminal.press(next(keys))
            next_key_at += 1.0
        time.sleep(max(0.0, min(next_key_at if pressing else now + seconds, began_at + seconds) - time.monotonic()))
    shares = meter.percent()
    elapsed = time.monotonic() - began_at
    return {
        "seconds": elapsed,
        "bytes_per_second": (terminal.bytes_written - bytes_before) / elapsed,
        "nvml_calls_per_second": (calls() - calls_before) / elapsed,
        **{f"cpu_percent_{name}": share for name, share in shares.items() if name != "sum"},
        "cpu_percent": shares["sum"],
    }
