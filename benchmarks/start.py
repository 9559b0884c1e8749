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
    found: dict[str, Any] = {}
    with Scene() as scene:
        scene.start_agent()
        time.sleep(warm_seconds)
        for columns, rows in sizes:
            programs = {"ours": (scene.gputui(), WORDS), "empty": ([sys.executable, "-c", EMPTY_APP], ("ready",))}
            taken: dict[str, list[float]] = {name: [] for name in programs}
            for number in range(int(starts) + 1):
                for name, (argv, words) in programs.items():
                    with Terminal(argv, columns=columns, rows=rows, environment=scene.environment) as terminal:
                        seconds = first_frame_seconds(terminal, words)
                    if number >= 1:
                        taken[name].append(seconds)
            ours = statistics.median(taken["ours"])
            empty = statistics.median(taken["empty"])
            found[size_word(columns, rows)] = {
                "median_seconds": ours,
                "best_seconds": min(taken["ours"]),
                "worst_seconds": max(taken["ours"]),
                "empty_app_seconds": empty,
                "ratio": ours / empty,
            }
    return found


if __name__ == "__main__":
    alone(measure)
