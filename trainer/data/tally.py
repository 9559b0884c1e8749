"""What reading took and passed over, added up between two looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.data.reading import Fetched
from trainer.data.samples import too_many_broken


@dataclass(frozen=True)
class FeedReport:
    """Since the report before. `skipped` names each broken sample once in the life of a feed."""

    wait_seconds: float  # in which the training process waited for data
    read_seconds: float  # that readers spent on the batches it got, added up over reading processes
    samples: int
    skipped: list[str]
    cache_hit_rate: float | None  # None without a cache


class Tally:
    """The sums of a rank over its reading processes, and the limit on broken samples."""

    def __init__(self, max_broken: int) -> None:
        self._max_broken = max_broken
        self._broken: set[int] = set()
        self._clear()

    def add(self, fetched: Fetched, wait_seconds: float) -> None:
        """Raises TrainerError when the rank has met more broken samples than it may."""
        self._wait_seconds += wait_seconds
        self._read_seconds += fetched.read_seconds
        self._samples += fetched.samples
        self._hits += fetched.cache_hits
        self._lookups += fetched.cache_hits + fetched.cache_misses
        for index, reason in fetched.broken.items():
            if index not in self._broken:
                self._broken.add(index)
                self._skipped.append(reason)
                if len(self._broken) > self._max_broken:
                    raise too_many_broken(self._max_broken, reason)

    def report(self) -> FeedReport:
        """The sums since the report before."""
        report = FeedReport(
            wait_seconds=self._wait_seconds,
            read_seconds=self._read_seconds,
            samples=self._samples,
            skipped=self._skipped,
            cache_hit_rate=self._hits / self._lookups if self._lookups else None,
        )
        self._clear()
        return report

    def _clear(self) -> None:
        self._wait_seconds = self._read_seconds = 0.0
        self._samples = self._hits = self._lookups = 0
        self._skipped: list[str] = []
