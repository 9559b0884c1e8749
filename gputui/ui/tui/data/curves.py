"""The curves of the runs that the screen shows, kept between snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.store.attempts import read_attempts


class CurveReader:
    """Answers chart requests; the curves of a run are kept while its charts are open."""

    def __init__(self) -> None:
        self._runs: dict[str, RunCurves] = {}
        self._past: dict[str, tuple[ChartRequest, float, ChartData]] = {}

    def read(
        self, connection: sqlite3.Connection, run_id: str, request: ChartRequest, at: float | None = None
    ) -> ChartData:
        """The charts of one run, now or at a past moment (UTC unix seconds). Raises sqlite3.Error."""
        if at is None:
            curves = self._runs.setdefault(run_id, RunCurves(run_id))
            return curves.read(connection, read_attempts(connection, run_id), request)
        known = self._past.get(run_id)
        if known is None or known[:2] != (request, at):
            data = RunCurves(run_id, at).read(connection, read_attempts(connection, run_id, at), request)
            known = self._past[run_id] = (request, at, data)
        return known[2]

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget all runs but these."""
        for kept in (self._runs, self._past):
            for run_id in [run_id for run_id in kept if run_id not in run_ids]:
                del kept[run_id]
