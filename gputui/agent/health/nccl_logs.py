"""Errors of the communication between GPUs in the logs of living attempts: NCCL complains long before a run ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.attempt_launch import attempt_dir
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.recovery.signatures import nccl_trouble
from gputui.runs.logs import RankLog, rank_logs, read_window
from gputui.store.attempts import Attempt

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
# A log that grows faster is read from its end: the loop must not wait for it.
WINDOW_BYTES = 64 << 10
LINE_CHARACTERS = 200


@dataclass(slots=True)
class NcclLogs:
    """Reads on in each log from where it was before; ``places`` are byte offsets."""

    context: AgentContext
    places: dict[Path, int] = field(default_factory=dict)
    due: float = float("-inf")

    def turn(self, now: float, records: Iterable[Attempt]) -> dict[str, list[str]]:
        """New messages since the last look, by run; ``now`` is monotonic. Attempts on one GPU are skipped."""
        if now < self.due:
            return {}
        self.due = now + LOOK_SECONDS
        found: dict[str, list[str]] = {}
        seen: set[Path] = set()
        for record in records:
            if len(record.gpus) < 2:
                continue
            for one in rank_logs(attempt_dir(self.context.workspace, record.run_id, record.number)):
                seen.add(one.path)
                lines = self._read(one)
                if lines:
                    redactor = redactor_of(self.context.workspace, record.run_id)
                    found.setdefault(record.run_id, []).extend(redactor.text(line)[:LINE_CHARACTERS] for line in lines)
        self.places = {path: place for path, place in self.places.items() if path in seen}
        return found

    def _read(self, one: RankLog) -> list[str]:
        try:
            size = one.path.stat().st_size
            place = self.places.get(one.path)
            if place is None:
                # An earlier agent's reports are not repeated.
                self.places[one.path] = size
                return []
            if size == place:
                return []
            window = read_window(one.path, max(place, size - WINDOW_BYTES), WINDOW_BYTES)
        except OSError as error:
            log.warning("%s cannot be read: %s", one.path, error)
            self.places.pop(one.path, None)
            return []
        self.places[one.path] = window.end
        who = "" if one.rank is None else f"rank {one.rank}: "
        return [f"{who}{line}" for line in nccl_trouble(window.text)]
