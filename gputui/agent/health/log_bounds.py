"""Bounding the logs of living attempts, in a job: giving gigabytes back may keep a file system busy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.health.log_quota import Quota, Trimmed, trim_all
from gputui.agent.jobs import Job
from gputui.charts.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store import metric_intake
from gputui.store.events import add_event

LOOK_SECONDS = 30.0
# A disk that writes hundreds of gigabytes of checkpoints is busy for minutes.
DEADLINE_SECONDS = 3600.0

# (run id, attempt number, the attempt's folder)
Place = tuple[str, int, Path]
# With each place the outputs that are read as metrics: pattern, and bytes read.
Looks = list[tuple[Place, list[tuple[str, int]]]]


@dataclass(slots=True)
class LogBounds:
    """Looks at the logs now and then, and tells what was dropped from them."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    job: Job[list[tuple[Place, list[Trimmed]]]] | None = None
    found: list[tuple[Place, list[Trimmed]]] = field(default_factory=list)
    told: set[Path] = field(default_factory=set)

    def turn(self, now: float, places: Iterable[Place]) -> None:
        """Tell what the last look found, and begin another when it is time; ``now`` is monotonic. Raises sqlite3.Error
        with nothing forgotten."""
        if self.job is not None:
            if not self.job.is_over:
                return
            job, self.job = self.job, None
            self.found = job.result()
        while self.found:
            place, trimmed = self.found[0]
            for one in trimmed:
                self._tell(place, one)
            self.found.pop(0)
        if now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            # Read here, not in the job: how far metrics were read only grows, so that an old answer keeps too much.
            looks = [
                (place, metric_intake.output_read(self.context.connection, place[0], place[1])) for place in places
            ]
            work = partial(bound_logs, looks, self.quota)
            self.job = self.context.jobs.start("bounding the logs", work, deadline_seconds=DEADLINE_SECONDS)

    def _tell(self, place: Place, one: Trimmed) -> None:
        run_id, attempt, folder = place
        if one.problem is not None and one.path in self.told:
            return
        limit = bytes_text(self.quota.limit_bytes)
        if one.problem is not None:
            self.told.add(one.path)
            what = f"and cannot be bounded ({one.problem}); watch the disk"
        else:
            what = f"so {bytes_text(one.missing_bytes)} in its middle were dropped; its beginning and its end are kept"
        add_event(
            self.context.connection,
            "log_trimmed" if one.problem is None else "log_unbounded",
            f"{one.path.relative_to(folder)} grew beyond {limit}, {what}",
            now=self.context.now(),
            key=str(one.path),
            severity="warning",
            run_id=run_id,
            attempt=attempt,
        )


def bound_logs(looks: Looks, quota: Quota) -> list[tuple[Place, list[Trimmed]]]:
    """Drop the middle of logs that are too long, but nothing of what is read as metrics and was not yet."""
    found = []
    for place, sources in looks:
        logs = [log.path for log in rank_logs(place[2])]
        read = {path: offset for pattern, offset in sources for path in logs if fnmatchcase(str(path), pattern)}
        trimmed = trim_all(logs, quota, read)
        if trimmed:
            found.append((place, trimmed))
    return found
