"""Bounding the disk that the logs of running attempts take, and reporting what was dropped from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from gputui.agent.context import AgentContext
from gputui.agent.health.log_trimming import Quota, Trimmed, trim_all
from gputui.agent.jobs import Job
from gputui.charts.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store.events import add_event
from gputui.store.metrics import intake

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
# A disk that writes hundreds of gigabytes of checkpoints is busy for minutes.
DEADLINE_SECONDS = 3600.0


class AttemptFolder(NamedTuple):
    """An attempt, and where it is."""

    run_id: str
    number: int
    folder: Path


class _Look(NamedTuple):
    """An attempt whose logs are looked at, with the outputs that are read as metrics: pattern, and bytes read."""

    attempt: AttemptFolder
    outputs: list[tuple[str, int]]


_Found = list[tuple[AttemptFolder, Trimmed]]


@dataclass(slots=True)
class LogBounds:
    """Looks at the logs now and then. ``unreported`` is what the last look found and is not stored yet; ``reported``
    are the logs of which it is stored that they cannot be bounded."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    job: Job[_Found] | None = None
    unreported: _Found = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)

    def turn(self, now: float, attempts: Iterable[AttemptFolder]) -> None:
        """Report what the last look found, and begin another when it is time; ``now`` is monotonic. Raises
        sqlite3.Error with nothing forgotten."""
        if self.job is not None:
            if not self.job.is_over:
                return
            job, self.job = self.job, None
            self.unreported = job.result()
        while self.unreported:
            attempt, trimmed = self.unreported[0]
            if trimmed.problem is None:
                dropped = f"{bytes_text(trimmed.missing_bytes)} in its middle were dropped"
                self._report(attempt, trimmed.path, "log_trimmed", f"so {dropped}; its beginning and its end are kept")
            elif trimmed.path not in self.reported:
                words = f"and cannot be bounded ({trimmed.problem}); watch the disk"
                self._report(attempt, trimmed.path, "log_unbounded", words)
                self.reported.add(trimmed.path)
            self.unreported.pop(0)
        if now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            # Read here, not in the job: how far metrics were read only grows, so that an old answer keeps too much.
            read = partial(intake.output_read, self.context.connection)
            looks = [_Look(attempt, read(attempt.run_id, attempt.number)) for attempt in attempts]
            work = partial(_bound_logs, looks, self.quota)
            self.job = self.context.jobs.start("bounding the logs", work, deadline_seconds=DEADLINE_SECONDS)

    def _report(
        self, attempt: AttemptFolder, path: Path, kind: Literal["log_trimmed", "log_unbounded"], what: str
    ) -> None:
        limit = bytes_text(self.quota.limit_bytes)
        add_event(
            self.context.connection,
            kind,
            f"{path.relative_to(attempt.folder)} grew beyond {limit}, {what}",
            now=self.context.now(),
            key=str(path),
            severity="warning",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )


def _bound_logs(looks: list[_Look], quota: Quota) -> _Found:
    """Drop the middle of logs that are too long, but nothing of what is read as metrics and was not yet."""
    found = []
    for attempt, outputs in looks:
        try:
            logs = [one.path for one in rank_logs(attempt.folder)]
        except OSError as error:
            log.warning("the logs of %s cannot be looked at: %s", attempt.run_id, error)
            continue
        read = {path: offset for pattern, offset in outputs for path in logs if fnmatchcase(str(path), pattern)}
        found += [(attempt, trimmed) for trimmed in trim_all(logs, quota, read)]
    return found
