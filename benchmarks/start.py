"""From typing `gputui` to the first full frame, with an agent running and the files in the page cache, beside that of a
Textual app with one word in it.

python -m benchmarks.start
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.alone import alone
from benchmarks.scene import Scene
from benchmarks.terminal import Terminal
from benchmarks.watching import SIZES, first_frame_seconds, size_word

AGENT_WARM_SECONDS = 12.0
"""By then every tier has read every GPU, so that the screen has all that it will show."""

WORDS = ("GPUS", "hottest", "cpu", "RUNS", "EVENTS", "^p")
"""A word of each part of the overview."""


EMPTY_APP = """
from textual.app import App
from textual.widgets import Static


class EmptyApp(App):
    def compose(self):
        yield Static("ready")


EmptyApp().run()
"""


def measure(
    starts: float = 7, *, warm_seconds: float = AGENT_WARM_SECONDS, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """For each size: seconds from the spawn to the moment at which the emulated screen is complete, of some starts
    after one that does not count; ``ratio`` is that to the empty app's, which starts in turn with it."""
    figures: dict[str, Any] = {}
    with Scene() as scene:
        scene.start_agent()
        time.sleep(warm_seconds)
        for columns, rows in sizes:
            programs = {"ours": (scene.gputui(), WORDS), "empty": ([sys.executable, "-c", EMPTY_APP], ("ready",))}
            durations: dict[str, list[float]] = {name: [] for name in programs}
            for number in range(int(starts) + 1):
                for name, (argv, texts) in programs.items():
                    with Terminal(argv, columns=columns, rows=rows, environment=scene.environment) as terminal:
                        seconds = first_frame_seconds(terminal, texts)
                    if number >= 1:
                        durations[name].append(seconds)
            ours = statistics.median(durations["ours"])
            empty = statistics.median(durations["empty"])
            figures[size_word(columns, rows)] = {
                "median_seconds": ours,
                "best_seconds": min(durations["ours"]),
                "worst_seconds": max(durations["ours"]),
                "empty_app_seconds": empty,
                "ratio": ours / empty,
            }
    return figures


if __name__ == "__main__":
    alone(measure)
