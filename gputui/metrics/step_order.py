"""Detect steps that start again within one attempt, such as a count per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.metrics.reduction import MetricLine

STARTS_AGAIN = (
    "its steps start again at their first within an attempt, so that charts by step lay its epochs over each other; "
    "let the script count on, or have the pattern name epoch and iter"
)


@dataclass(slots=True)
class StepOrder:
    """The steps of one source. A script may restart them once; twice means that it counts per epoch."""

    attempt: int = 0
    first: int = 0
    last: int = 0
    starts: int = 0

    def add(self, lines: Sequence[MetricLine]) -> bool:
        """Take the next lines; True if they start again for the second time in their attempt."""
        is_found = False
        for line in lines:
            if "event" in line.values:
                continue
            if line.attempt != self.attempt:
                self.attempt, self.first, self.last, self.starts = line.attempt, line.step, line.step, 0
            elif line.step <= self.first and self.last > line.step + 1:
                self.starts += 1
                is_found = is_found or self.starts == 2
                self.first = line.step
            self.last = line.step
        return is_found
