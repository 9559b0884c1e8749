"""Cost of the screen at 1 Hz, with the agent and the sampler behind it, and how quick it is.

python -m benchmarks.tui [SECONDS]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.alone import alone
from benchmarks.liverun import LiveRun
from benchmarks.past import finished_runs, long_curve
from benchmarks.processes import family
from benchmarks.scene import GPUS, Scene
from benchmarks.terminal import Terminal
from benchmarks.touch import ENTER, dialog_to_paint, key_to_paint, open_page, stall
from benchmarks.watching import LONGEST_START_SECONDS, SIZES, Spans, first_frame_seconds, size_word, watch

GPU_COUNTS = (1, 16)
"""Beside the eight of every other measurement."""

HISTORY_RUNS = 100
CROWD = 300
POINTS = 1_000_000
KEYS = 150
STALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """The size of the scene, and the time that it is watched."""

    history_runs: int = HISTORY_RUNS
    crowd: int = CROWD
    points: int = POINTS
    keys: int = KEYS
    stall_seconds: float = STALL_SECONDS
    gpu_counts: tuple[int, ...] = GPU_COUNTS
    starts: int = 3
    openings: int = 5
    dialogs: int = 10


def measure(
    idle_seconds: float = 20.0,
    *,
    spans: Spans | None = None,
    sizes: Sequence[tuple[int, int]] = SIZES,
    load: Load | None = None,
) -> dict[str, Any]:
    """For each size of the terminal: CPU, memory, bytes a second, left alone and with a key a second, and how soon keys
    are seen; the same at the largest size with other numbers of GPUs; and ``crowd``: many runs, processes and values.
    The overview is shown, with history in the store."""
    spans = spans or Spans(idle_seconds=idle_seconds)
    load = load or Load()
    figures: dict[str, Any] = {}
    with Scene() as scene:
        agent = scene.start_agent()
        finished_runs(scene.workspace, load.history_runs)
        for columns, rows in sizes:
            figures[size_word(columns, rows)] = _watched(scene, agent, (columns, rows), spans, load)
    for gpus in load.gpu_counts:
        with Scene(gpus, 2 * gpus) as scene:
            agent = scene.start_agent()
            finished_runs(scene.workspace, load.history_runs)
            figures[f"gpus_{gpus}"] = _watched(scene, agent, sizes[-1], spans, load)
    figures["crowd"] = _crowd(spans, load, sizes[-1])
    return figures


def _watched(scene: Scene, agent: int, size: tuple[int, int], spans: Spans, load: Load) -> dict[str, Any]:
    with Terminal(scene.gputui(), columns=size[0], rows=size[1], environment=scene.environment) as terminal:
        time.sleep(spans.warm_seconds)
        figures = watch(terminal, scene, _groups(terminal, agent), spans)
        return {**figures, "key_to_paint": key_to_paint(terminal, load.keys)}


def _groups(terminal: Terminal, agent: int) -> dict[str, list[int]]:
    return {
        "screen": family([terminal.pid]),
        "agent": [agent],
        "sampler": [pid for pid in family([agent]) if pid != agent],
    }


def _crowd(spans: Spans, load: Load, size: tuple[int, int]) -> dict[str, Any]:
    """Eight GPUs with hundreds of processes, a hundred runs in history, and a living run whose open chart holds a
    million values and gets one more each second."""
    columns, rows = size
    with Scene(GPUS, load.crowd) as scene:
        agent = scene.start_agent()
        finished_runs(scene.workspace, load.history_runs)
        with LiveRun(scene) as run:
            long_curve(scene.workspace, run, load.points)
            time.sleep(spans.warm_seconds)
            firsts = []
            for _ in range(load.starts):
                with Terminal(scene.gputui(), columns=columns, rows=rows, environment=scene.environment) as terminal:
                    firsts.append(first_frame_seconds(terminal, ("GPUS", "RUNS", run.run_id)))
            with Terminal(scene.gputui(), columns=columns, rows=rows, environment=scene.environment) as terminal:
                terminal.wait(lambda lines: any(run.run_id in line for line in lines), LONGEST_START_SECONDS)
                time.sleep(spans.warm_seconds)
                overview = key_to_paint(terminal, load.keys)
                dialogs = dialog_to_paint(terminal, load.dialogs)
                opening = open_page(terminal, run.run_id, load.openings)
                stalled = stall(terminal, load.stall_seconds)
                terminal.press(ENTER)
                terminal.wait(lambda lines: run.run_id in lines[0], LONGEST_START_SECONDS)
                with run.going_on(seconds_per_line=1.0):
                    page = watch(terminal, scene, _groups(terminal, agent), spans)
    return {
        "first_frame_seconds": statistics.median(firsts),
        "key_to_paint": overview,
        "dialog_to_paint": dialogs,
        "open_page": opening,
        "stalled": stalled,
        "live_page": page,
    }


if __name__ == "__main__":
    alone(measure)
