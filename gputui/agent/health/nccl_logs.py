"""NCCL errors in the logs of live attempts, which appear long before a run ends."""

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
# Of a log that grows faster, only the end is read.
WINDOW_BYTES = 64 << 10
LINE_CHARACTERS = 200


@dataclass(slots=True)
class NcclLogs:
    """Reads new parts of each log; ``places`` are byte offsets."""

    context: AgentContext
    places: dict[Path, int] = field(default_factory=dict)
    due: float = float("-inf")

    def turn(self, now: float, records: Iterable[Attempt]) -> dict[str, list[str]]:
        """New messages since the last check, by run; ``now`` is monotonic. Attempts with one GPU
        are skipped."""
        if now < self.due:
            return {}
        self.due = now + LOOK_SECONDS
        errors: dict[str, list[str]] = {}
        read_paths: set[Path] = set()
        for record in records:
            if len(record.gpus) < 2:
                continue
            for rank_log in rank_logs(attempt_dir(self.context.workspace, record.run_id, record.number)):
                read_paths.add(rank_log.path)
                lines = self._read(rank_log)
                if lines:
                    redactor = redactor_of(self.context.workspace, record.run_id)
                    errors.setdefault(record.run_id, []).extend(redactor.text(line)[:LINE_CHARACTERS] for line in lines)
        self.places = {path: offset for path, offset in self.places.items() if path in read_paths}
        return errors

    def _read(self, rank_log: RankLog) -> list[str]:
        try:
            size = rank_log.path.stat().st_size
            offset = self.places.get(rank_log.path)
            if offset is None:
                # Do not repeat what a former agent has reported.
                self.places[rank_log.path] = size
                return []
            if size == offset:
                return []
            window = read_window(rank_log.path, max(offset, size - WINDOW_BYTES), WINDOW_BYTES)
        except OSError as error:
            log.warning("%s cannot be read: %s", rank_log.path, error)
            self.places.pop(rank_log.path, None)
            return []
        self.places[rank_log.path] = window.end
        who = "" if rank_log.rank is None else f"rank {rank_log.rank}: "
        return [f"{who}{line}" for line in nccl_trouble(window.text)]
