"""The cursor of the overview: on a GPU, a run or an event, and what an action is therefore about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gputui.store.events import EventView
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.tui.actions import Context
from gputui.tui.data.snapshot import RunRow
from gputui.tui.pages.overview.areas import Rows
from gputui.tui.pages.overview.gpus import first_shown
from gputui.tui.pages.overview.run_order import fold_trials, in_order, matching
from gputui.tui.pages.overview.runs import RunsState
from gputui.tui.widgets.cursor import Focus, Section, kept, moved, next_section
from gputui.tui.widgets.list_page import ListPage


class OverviewCursor(ListPage):
    """Keeps the cursor where it is however the snapshot changes, and moves it."""

    table: RunsState

    def __init__(self) -> None:
        super().__init__()
        self.is_folded = False
        self.table = RunsState()
        self.focus_at = Focus()
        self._awaited: str | None = None
        self.folded_trials: Mapping[str, Sequence[RunRow]] = {}
        self._sorted: tuple[object, str, str, list[RunRow]] = (None, "", "", [])

    @property
    def shown_rows(self) -> list[RunRow]:
        """The runs that match the filter, in their order. Without a filter the ended trials of a study share a row."""
        runs, table = self.snapshot.runs, self.table
        if self._sorted[0] is not runs or self._sorted[1:3] != (table.filter_text, table.order):
            found = in_order(matching(runs, table.filter_text), table.order)
            self.folded_trials = {}
            if not table.filter_text:
                found, self.folded_trials = fold_trials(found)
            self._sorted = (runs, table.filter_text, table.order, found)
        return self._sorted[3]

    @property
    def row_ids(self) -> list[str]:
        return [row.run.run_id for row in self.shown_rows]

    @property
    def marked_runs(self) -> tuple[str, ...]:
        """The runs marked for a comparison, in the order of the table; runs that were removed are not among them."""
        return tuple(row.run.run_id for row in self.snapshot.runs if row.run.run_id in self.table.marked)

    @property
    def gpu_in_question(self) -> GpuView | None:
        """The GPU under the cursor or that the event is about, or the first one of the run under it."""
        gpus = self.snapshot.gpus
        if self.focus_at.section == "gpus":
            return next((gpu for gpu in gpus if gpu.uuid == self.focus_at.gpu), None)
        run = self.run_in_question
        of_run = next((gpu for gpu in gpus if run is not None and run.run_id in gpu.run_ids), None)
        if self.focus_at.section == "events":
            event = self.event_in_question
            subject = event.subject if event else None
            return next((gpu for gpu in gpus if subject == f"GPU {gpu.index}"), of_run)
        return of_run or next(iter(gpus), None)

    @property
    def event_in_question(self) -> EventView | None:
        """The event under the cursor."""
        return next((event for event in self.snapshot.events if event.event_id == self.focus_at.event), None)

    @property
    def run_in_question(self) -> Run | None:
        """The run under the cursor, or the one that the GPU or the event under it is about."""
        section, wanted = self.focus_at.section, self.table.cursor
        if section == "gpus":
            gpu = self.gpu_in_question
            wanted = gpu.run_id if gpu else None
        elif section == "events":
            event = self.event_in_question
            wanted = event.run_id if event else None
        rows = self.shown_rows if section == "runs" else self.snapshot.runs
        return next((row.run for row in rows if row.run.run_id == wanted), None)

    def context(self) -> Context:
        held = self.snapshot.machine
        return replace(
            super().context(),
            section=self.focus_at.section,
            gpu=self.gpu_in_question,
            quarantined=frozenset(held.quarantined),
        )

    def keep_cursor(self) -> None:
        """The cursor stays on its run, wherever that moves; when it is gone, on the first. So with GPUs and events."""
        if self._awaited in self.row_ids:
            self.point_at(self._awaited)
            self._awaited = None
        super().keep_cursor()
        snapshot, focus = self.snapshot, self.focus_at
        section = focus.section if focus.section in self._filled() else "runs"
        event = focus.event
        if event is not None and all(each.event_id != event for each in snapshot.events):
            event = snapshot.events[0].event_id if snapshot.events else None
        gpu = kept([gpu.uuid for gpu in snapshot.gpus], focus.gpu)
        self.focus_at = replace(focus, section=section, gpu=gpu, event=event)
        if self.table.is_focused != (section == "runs"):
            self.table = replace(self.table, is_focused=section == "runs")

    def _filled(self) -> list[Section]:
        """The sections that can have the cursor now."""
        filled: list[Section] = ["runs"]
        if self.snapshot.gpus and not self.is_folded:
            filled.append("gpus")
        if self.snapshot.events:
            filled.append("events")
        return filled

    def select_run(self, run_id: str) -> None:
        """Put the cursor on a run as soon as it is there."""
        self._awaited = run_id
        self.focus_at = replace(self.focus_at, section="runs")
        self.changed()

    def scroll_gpus(self, rows: Rows, width: int) -> int:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        place = uuids.index(self.focus_at.gpu) if self.focus_at.gpu in uuids else 0
        top = first_shown(len(uuids), place, self.focus_at.gpu_top, rows.gpus, width)
        self.focus_at = replace(self.focus_at, gpu_top=top)
        return top

    def move(self, by: int) -> None:
        snapshot, focus = self.snapshot, self.focus_at
        if focus.section == "gpus":
            self.focus_at = replace(focus, gpu=moved([gpu.uuid for gpu in snapshot.gpus], focus.gpu, by))
        elif focus.section == "events":
            ids = [event.event_id for event in snapshot.events]
            self.focus_at = replace(focus, event=moved(ids, focus.event, by, len(ids) - 1))
        else:
            super().move(by)
            return
        self.changed()

    def do_focus_next(self) -> None:
        self._focus(1)

    def do_focus_previous(self) -> None:
        self._focus(-1)

    def _focus(self, by: int) -> None:
        self.focus_on(next_section(self.focus_at.section, by, self._filled()))
        self.changed()

    def focus_on(self, section: Section) -> None:
        """Put the cursor into a section, where it was there last."""
        event = self.focus_at.event
        if section == "events" and event is None and self.snapshot.events:
            event = self.snapshot.events[-1].event_id
        self.focus_at = replace(self.focus_at, section=section, event=event if section == "events" else None)
