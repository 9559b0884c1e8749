"""Bounding the logs of living attempts, in a thread: giving gigabytes back may keep a file system busy."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.health.log_quota import Quota, Trimmed, trim_all
from gputui.charts.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store import metric_intake
from gputui.store.events import add_event

LOOK_SECONDS = 30.0

# (run id, attempt number, the attempt's folder)
Place = tuple[str, int, Path]


@dataclass(slots=True)
class LogBounds:
    """Looks at the logs now and then, and tells what was dropped from them."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    thread: threading.Thread | None = None
    found: list[tuple[Place, list[Trimmed]]] = field(default_factory=list)
    told: set[Path] = field(default_factory=set)

    def turn(self, now: float, places: Iterable[Place]) -> None:
        """Tell what the last look found, and begin another when it is time; ``now`` is monotonic. Raises sqlite3.Error
        with nothing forgotten."""
        if self.thread is not None and self.thread.is_alive():
            return
        while self.found:
            place, trimmed = self.found[0]
            for one in trimmed:
                self._tell(place, one)
            self.found.pop(0)
        if now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            # Read here, not in the thread: how far metrics were read only grows, so that an old answer keeps too much.
            looks = [
                (place, metric_intake.output_read(self.context.connection, place[0], place[1])) for place in places
            ]
            self.thread = threading.Thread(target=self._look, args=(looks,), name="log-bounds", daemon=True)
            self.thread.start()

    def _look(self, looks: list[tuple[Place, list[tuple[str, int]]]]) -> None:
        for place, sources in looks:
            logs = [log.path for log in rank_logs(place[2])]
            read = {path: offset for pattern, offset in sources for path in logs if fnmatchcase(str(path), pattern)}
            trimmed = trim_all(logs, self.quota, read)
            if trimmed:
                self.found.append((place, trimmed))

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
