"""From typing `gputui` to the first full frame, with an agent running and the files in the page cache.

python -m benchmarks.start
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.alone import alone
from benchmarks.scene import Scene
from benchmarks.terminal import Terminal
from benchmarks.watching import SIZES, first_frame_seconds, size_word

AGENT_WARM_SECONDS = 12.0
"""By then every tier has read every GPU, so that the screen has all that it will show."""

WORDS = ("GPUS", "hottest", "cpu", "RUNS", "EVENTS", "quit")
"""A word of each part of the overview."""


def measure(
    starts: float = 7, *, warm_seconds: float = AGENT_WARM_SECONDS, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """For each size: seconds from the spawn to the moment at which the emulated screen is complete, of some starts
    after one that does not count."""
    found = {}
    with Scene() as scene:
        scene.start_agent()
        time.sleep(warm_seconds)
        for columns, rows in sizes:
            taken = []
            for number in range(int(starts) + 1):
                with Terminal(scene.gputui(), columns=columns, rows=rows, environment=scene.environment) as terminal:
                    seconds = first_frame_seconds(terminal, WORDS)
                if number >= 1:
                    taken.append(seconds)
            found[size_word(columns, rows)] = {
                "median_seconds": statistics.median(taken),
                "best_seconds": min(taken),
                "worst_seconds": max(taken),
            }
    return found


if __name__ == "__main__":
    alone(measure)
