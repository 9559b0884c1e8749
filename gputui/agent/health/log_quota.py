"""The disk quota of running attempts' logs: trim long logs, and report what was dropped."""

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
from gputui.core.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store.events import add_event
from gputui.store.metrics import intake

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
# A disk may be busy for minutes with hundreds of gigabytes of checkpoints.
DEADLINE_SECONDS = 3600.0


class AttemptFolder(NamedTuple):
    """An attempt and its folder."""

    run_id: str
    number: int
    folder: Path


class _LogCheck(NamedTuple):
    """An attempt whose logs are checked, with those that are read as metrics: pattern, and bytes read."""

    attempt: AttemptFolder
    outputs: list[tuple[str, int]]


_Found = list[tuple[AttemptFolder, Trimmed]]


@dataclass(slots=True)
class LogBounds:
    """Checks the logs periodically. ``unreported`` are results of the last check that are not stored yet; ``reported``
    are logs that are reported as impossible to trim."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    job: Job[_Found] | None = None
    unreported: _Found = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)

    def turn(self, now: float, attempts: Iterable[AttemptFolder]) -> None:
        """Report the results of the last check, and start another if it is due; ``now`` is monotonic. Raises
        sqlite3.Error without losing results."""
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
            # The bytes read as metrics only grow, so a stale number is safe: it keeps too much.
            read = partial(intake.output_read, self.context.connection)
            checks = [_LogCheck(attempt, read(attempt.run_id, attempt.number)) for attempt in attempts]
            work = partial(_bound_logs, checks, self.quota)
            self.job = self.context.jobs.start("bounding the logs", work, deadline_seconds=DEADLINE_SECONDS)

    def _report(
        self, attempt: AttemptFolder, path: Path, kind: Literal["log_trimmed", "log_unbounded"], text: str
    ) -> None:
        limit = bytes_text(self.quota.limit_bytes)
        add_event(
            self.context.connection,
            kind,
            f"{path.relative_to(attempt.folder)} grew beyond {limit}, {text}",
            now=self.context.now(),
            key=str(path),
            severity="warning",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )


def _bound_logs(checks: list[_LogCheck], quota: Quota) -> _Found:
    """Drop the middle of logs that are too long, except for metrics that are not read yet."""
    found = []
    for attempt, outputs in checks:
        try:
            logs = [one.path for one in rank_logs(attempt.folder)]
        except OSError as error:
            log.warning("the logs of %s cannot be looked at: %s", attempt.run_id, error)
            continue
        read = {path: offset for pattern, offset in outputs for path in logs if fnmatchcase(str(path), pattern)}
        found += [(attempt, trimmed) for trimmed in trim_all(logs, quota, read)]
    return found
