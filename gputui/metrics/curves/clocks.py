"""The relation between an attempt's steps, moments and epochs, learned from its lines."""

from __future__ import annotations

import math

from gputui.metrics.curves.axis import epoch_pairs
from gputui.metrics.curves.run_lines import CurveLine
from gputui.store.metrics.envelopes import Stretch
from gputui.store.metrics.queries import as_float

PACE_SECONDS = 1.0
"""Least time between two kept pairs of a moment and a step."""

MOST_PAIRS = 20_000

EPOCH = "epoch"


class Paces:
    """(moment, step) pairs by attempt, both increasing."""

    def __init__(self) -> None:
        self.pairs: dict[int, list[tuple[float, float]]] = {}

    def add(self, line: CurveLine) -> None:
        """Add the pair of a line."""
        if line.at is not None:
            self._add(line.attempt, line.at, line.step)

    def add_stretch(self, stretch: Stretch) -> None:
        """Add the ends of a stretch."""
        if stretch.min_at is not None and stretch.max_at is not None:
            self._add(stretch.attempt, stretch.min_at, stretch.min_step)
            self._add(stretch.attempt, stretch.max_at, stretch.max_step)

    def _add(self, attempt: int, at: float, step: int) -> None:
        known = self.pairs.setdefault(attempt, [])
        if not known or (at - known[-1][0] >= PACE_SECONDS and step >= known[-1][1]):
            known.append((at, float(step)))
            _thin(known)


class Epochs:
    """(step, epoch) pairs by attempt."""

    def __init__(self) -> None:
        self._written: dict[int, list[tuple[float, float]]] = {}
        self._settled: dict[int, list[tuple[float, float]]] | None = None
        self._newest: dict[int, float] = {}

    def add(self, line: CurveLine) -> bool:
        """Add the pair of a line. False if, after `settle`, it moves earlier lines: an epoch has ended, and its length
        is known now."""
        epoch = as_float(line.values.get(EPOCH))
        if epoch is None or not math.isfinite(epoch):
            return True
        if self._settled is None:
            self.add_pair(line.attempt, float(line.step), epoch)
            return True
        if line.attempt in self._newest:
            return epoch <= self._newest[line.attempt]
        pairs = self._settled.get(line.attempt)
        if pairs is None:
            return False
        if not pairs or (line.step > pairs[-1][0] and epoch >= pairs[-1][1]):
            pairs.append((float(line.step), epoch))
            _thin(pairs)
        return True

    def add_pair(self, attempt: int, step: float, epoch: float) -> None:
        """Add a pair as it was written, before `settle`."""
        self._written.setdefault(attempt, []).append((step, epoch))

    def settle(self) -> dict[int, list[tuple[float, float]]]:
        """The pairs of the axis, with fractions of epochs. Those of attempts that write fractions keep growing."""
        self._settled = {attempt: epoch_pairs(written) for attempt, written in self._written.items()}
        for attempt, written in self._written.items():
            if all(epoch == math.floor(epoch) for _, epoch in written):
                self._newest[attempt] = max(epoch for _, epoch in written)
        self._written.clear()
        return self._settled


def _thin(pairs: list[tuple[float, float]]) -> None:
    """Drop every other pair but the ends if there are too many."""
    if len(pairs) > MOST_PAIRS:
        del pairs[1:-1:2]
