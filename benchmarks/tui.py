"""What the screen costs at 1 Hz, with the agent and the sampler behind it.

python -m benchmarks.tui [SECONDS]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.alone import alone
from benchmarks.processes import family
from benchmarks.scene import Scene
from benchmarks.terminal import Terminal
from benchmarks.watching import SIZES, Spans, size_word, watch


def measure(
    idle_seconds: float = 20.0, *, spans: Spans | None = None, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """For each size of the terminal: CPU, memory, bytes a second, left alone and with a key a second. The overview is
    shown, with history in the store."""
    spans = spans or Spans(idle_seconds=idle_seconds)
    found: dict[str, Any] = {}
    with Scene() as scene:
        agent = scene.start_agent()
        for columns, rows in sizes:
            with Terminal(scene.gputui(), columns=columns, rows=rows, environment=scene.environment) as terminal:
                time.sleep(spans.warm_seconds)
                groups = {
                    "screen": family([terminal.pid]),
                    "agent": [agent],
                    "sampler": [pid for pid in family([agent]) if pid != agent],
                }
                found[size_word(columns, rows)] = watch(terminal, scene, groups, spans)
    return found


if __name__ == "__main__":
    alone(measure)
