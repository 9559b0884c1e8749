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
        self._whole: dict[str, tuple[ChartRequest, float, ChartData]] = {}

    def read(
        self, connection: sqlite3.Connection, run_id: str, request: ChartRequest, now: float, at: float | None = None
    ) -> ChartData:
        """The charts of one run, now or at a past moment (UTC unix seconds). Whole curves are read once and cut
        for all past moments. Raises sqlite3.Error."""
        known = self._whole.get(run_id)
        if at is None or known is None or known[0] != request or at > known[1]:
            curves = self._runs.setdefault(run_id, RunCurves(run_id))
            data = curves.read(connection, read_attempts(connection, run_id), request)
            if at is None:
                return data
            known = self._whole[run_id] = (request, now, data)
        from gputui.metrics.curves.past import RunExtent, cut  # most screens never show the past

        return cut(known[2], RunExtent.of(connection, run_id, at))

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget all runs but these."""
        for kept in (self._runs, self._whole):
            for run_id in [run_id for run_id in kept if run_id not in run_ids]:
                del kept[run_id]
