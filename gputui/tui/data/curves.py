"""The feed's part of charts: the curves of the runs that the screen looks at, kept between snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from gputui.curves.following import RunCurves
from gputui.curves.model import ChartData, ChartRequest
from gputui.store.runs import Attempt


class CurveReader:
    """Answers chart requests; what was read of a run is kept as long as its charts are open."""

    def __init__(self) -> None:
        self._runs: dict[str, RunCurves] = {}

    def read(
        self, connection: sqlite3.Connection, run_id: str, attempts: Sequence[Attempt], request: ChartRequest
    ) -> ChartData:
        """The charts of one run. Raises sqlite3.Error."""
        curves = self._runs.get(run_id)
        if curves is None:
            curves = self._runs[run_id] = RunCurves(run_id)
        return curves.read(connection, attempts, request)

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget all runs but these."""
        for run_id in [run_id for run_id in self._runs if run_id not in run_ids]:
            del self._runs[run_id]
