"""The overview as one printed frame, for ``gputui --once``."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.data.snapshot import RunRow, Snapshot
from gputui.ui.tui.layout.alerts import alert_strip
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.moments import time_line
from gputui.ui.tui.layout.strips import aggregate_line, head_line, host_line, notice_lines, study_strip
from gputui.ui.tui.pages.overview.areas import share_rows
from gputui.ui.tui.pages.overview.events import event_rows, events_lines
from gputui.ui.tui.pages.overview.gpus import GpuCursor, gpu_height, gpu_lines
from gputui.ui.tui.pages.overview.run_order import fold_trials
from gputui.ui.tui.pages.overview.runs import RowContext, RunsState, runs_lines

OVER_SHOWN = 10
"""Ended runs in a frame without a height, the newest."""

EVENTS_SHOWN = 12

LINES_BESIDE_GPUS = 10
"""Lines for the head of the GPU table and its notes."""


def overview_frame(
    snapshot: Snapshot, width: int, height: int | None, *, host_name: str, notice: str | None = None
) -> list[Line]:
    """Head, notices, GPUs, host, runs and events, in ``height`` lines or, for None, in as many as they need."""
    head = [head_line(snapshot, width, host_name, demo=False, readonly=False, has_keys=False)]
    if snapshot.past is not None:
        head.append(time_line(snapshot.past, snapshot.at, width))
    head += notice_lines(snapshot, notice, width)
    alerts = alert_strip(snapshot.alerts, snapshot.at, width, has_keys=False)
    head += [] if alerts is None else [alerts]
    studies = study_strip(snapshot.studies, width, has_keys=False)
    runs, folded = fold_trials(snapshot.runs)
    context = RowContext.of(snapshot, folded, has_keys=False)
    if height is None:
        return [*head, *_unlimited(snapshot, studies, runs, context, width)]
    rows = share_rows(
        max(0, height - len(head) - len(studies)),
        gpus=lambda most: gpu_height(snapshot, width, most), cards=lambda most: 0,
        runs=len(runs), events=len(event_rows(snapshot.events, snapshot.at)),
        has_gpus=bool(snapshot.gpus), is_folded=False,
    )  # fmt: skip
    return [
        *head,
        *([aggregate_line(snapshot, width)] if rows.aggregate else []),
        *(gpu_lines(snapshot, width, rows.gpus, GpuCursor(has_keys=False)) if rows.gpus else []),
        *([host_line(snapshot, width)] if rows.host else []),
        *studies,
        *[fit_line([], width)] * (rows.air // 2),
        *runs_lines(runs, RunsState(), context, width, rows.runs),
        *[fit_line([], width)] * (rows.air // 2),
        *events_lines(snapshot.events, snapshot.at, width, rows.events),
    ][:height]


def _unlimited(
    snapshot: Snapshot, studies: Sequence[Line], rows: Sequence[RunRow], context: RowContext, width: int
) -> list[Line]:
    active = [row for row in rows if not row.run.state.is_over]
    over = [row for row in rows if row.run.state.is_over]
    shown = [*active, *over[:OVER_SHOWN]]
    runs = runs_lines(shown, RunsState(), context, width, max(2, len(shown) + 1))
    if len(over) > OVER_SHOWN:
        runs.append(fit_line([(f"  … {len(over) - OVER_SHOWN} older ones; gputui ps lists all", "dim")], width))
    events = snapshot.events[-EVENTS_SHOWN:]
    return [
        *([aggregate_line(snapshot, width)] if snapshot.gpus else []),
        *gpu_lines(snapshot, width, len(snapshot.gpus) + LINES_BESIDE_GPUS, GpuCursor(has_keys=False)),
        host_line(snapshot, width),
        *studies,
        *runs,
        *events_lines(events, snapshot.at, width, EVENTS_SHOWN * 2),
    ]
