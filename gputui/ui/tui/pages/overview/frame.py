"""The overview as one printed frame, for ``gputui --once``."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.moments import time_line
from gputui.ui.tui.layout.strips import alert_strip, head_line, notice_lines
from gputui.ui.tui.pages.overview.areas import AreaNeeds, Rows, share_rows
from gputui.ui.tui.pages.overview.events import event_rows, events_panel
from gputui.ui.tui.pages.overview.gpus import gpu_height, gpu_panel
from gputui.ui.tui.pages.overview.run_order import with_studies
from gputui.ui.tui.pages.overview.runs import RunsState, runs_panel
from gputui.ui.views.snapshot import RunRow, Snapshot

OVER_SHOWN = 10
"""Ended runs and studies in a frame without a height, the newest."""

EVENTS_SHOWN = 12

LINES_BESIDE_GPUS = 5


def overview_frame(
    snapshot: Snapshot, width: int, height: int | None, *, host_name: str, notice: str | None = None
) -> list[Line]:
    """Head, notices, GPUs, host, runs and events, in ``height`` lines or, for None, in as many as they need."""
    head = [head_line(snapshot, width, host_name, demo=False, readonly=False)]
    if snapshot.past is not None:
        head.append(time_line(snapshot.past, snapshot.at, width))
    head += notice_lines(snapshot, notice, width)
    alerts = alert_strip(snapshot, width)
    if alerts is not None:
        head.append(alerts)
    entries, events = with_studies(snapshot.runs, snapshot.studies), snapshot.events
    notes: list[Line] = []
    if height is None:
        over = [entry for entry in entries if isinstance(entry, RunRow) and entry.run.state.is_over]
        dropped = {id(entry) for entry in over[OVER_SHOWN:]}
        entries = [entry for entry in entries if id(entry) not in dropped]
        if dropped:
            notes = [fit_line([(f"  … {len(dropped)} older ones; gputui ps lists all", "dim")], width)]
        events = events[-EVENTS_SHOWN:]
        gpus = gpu_height(snapshot, width, len(snapshot.gpus) + LINES_BESIDE_GPUS)
        rows = Rows(
            gpus, 1 + max(1, len(entries)), events=1 + max(1, len(event_rows(replace(snapshot, events=events), width)))
        )
    else:
        needs = AreaNeeds(
            lambda most: gpu_height(snapshot, width, most), len(entries), 0, 0, 0,
            len(event_rows(snapshot, width)), has_charts=False,
        )  # fmt: skip
        rows = share_rows(width, max(0, height - len(head)), needs, is_framed=False)
    lines = [
        *head,
        *gpu_panel(snapshot, width, rows.gpus),
        *runs_panel(entries, RunsState(), snapshot, width, rows.runs, has_keys=False),
        *notes,
        *events_panel(snapshot, width, rows.events),
    ]
    if height is None:
        return lines
    return lines[:height]
