"""The cursor of the overview: the GPU, run or event that it is on, and so the subject of actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partialmethod
from typing import Literal

from msgspec.structs import replace

from gputui.store.events import EventView
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context
from gputui.ui.tui.layout.lists import filter_rows, order_named
from gputui.ui.tui.pages.overview.run_order import ORDERS, Entry, StudyEntry, entry_id, entry_words, with_studies
from gputui.ui.tui.pages.overview.runs import RunsState
from gputui.ui.tui.widgets.list_page import ListPage, neighbour

Section = Literal["gpus", "runs", "events"]
SECTIONS: tuple[Section, ...] = ("gpus", "runs", "events")


class OverviewCursor(ListPage):
    """Keeps the cursor on its GPU, run or event while snapshots change, and moves it.

    Attributes:
        focused_section: the section that arrow keys move in.
        gpu_cursor: the UUID of the last GPU under the cursor.
        gpu_top: the index of the first GPU shown where not all fit.
        event_cursor: the id of the last event under the cursor.
    """

    table: RunsState

    def __init__(self) -> None:
        super().__init__()
        self.is_folded = False
        self.table = RunsState()
        self.focused_section: Section = "runs"
        self.gpu_cursor: str | None = None
        self.gpu_top = 0
        self.event_cursor: int | None = None
        self._awaited_run: str | None = None
        self._entries: list[Entry] = []
        self._entries_source: tuple[object, str, str] = (None, "", "")
        """The snapshot, filter and order that the entries were made from."""

    @property
    def entries(self) -> list[Entry]:
        """The filtered and sorted runs. Without a filter, studies stand for their trials; with one, they are above
        them."""
        snapshot = self.snapshot
        table = self.table
        source, *settings = self._entries_source
        if source is not snapshot or settings != [table.filter_text, table.order]:
            entries = with_studies(order_named(ORDERS, table.order).sorted(snapshot.runs), snapshot.studies)
            if table.filter_text:
                unfolded: list[Entry] = []
                for entry in entries:
                    unfolded.append(entry)
                    if isinstance(entry, StudyEntry):
                        unfolded += entry.trials
                entries = filter_rows(unfolded, table.filter_text, entry_words)
            self._entries = entries
            self._entries_source = (snapshot, table.filter_text, table.order)
        return self._entries

    @property
    def row_ids(self) -> list[str]:
        return [entry_id(entry) for entry in self.entries]

    @property
    def marked_runs(self) -> tuple[Run, ...]:
        """The marked runs that still exist, in the order of the snapshot."""
        return tuple(row.run for row in self.snapshot.runs if row.run.run_id in self.table.marked)

    @property
    def gpu_in_question(self) -> GpuView | None:
        """The GPU under the cursor, the GPU of the event under it, or the first GPU of the run under it."""
        gpus = self.snapshot.gpus
        if self.focused_section == "gpus":
            return next((gpu for gpu in gpus if gpu.uuid == self.gpu_cursor), None)
        run = self.run_in_question
        of_run = next((gpu for gpu in gpus if run is not None and run.run_id in gpu.run_ids), None)
        if self.focused_section == "events":
            event = self.event_in_question
            match = event and re.search(r"\bGPU (\d+)\b", f"{event.subject} {event.message}")
            return next((gpu for gpu in gpus if match and gpu.index == int(match[1])), of_run)
        return of_run or next(iter(gpus), None)

    @property
    def event_in_question(self) -> EventView | None:
        """The event under the cursor."""
        return next((event for event in self.snapshot.events if event.event_id == self.event_cursor), None)

    @property
    def study_in_question(self) -> str | None:
        """The study under the cursor."""
        at_cursor = [entry for entry in self.entries if entry_id(entry) == self.table.cursor]
        study_ids = [entry.study_id for entry in at_cursor if isinstance(entry, StudyEntry)]
        if study_ids and self.focused_section == "runs":
            return study_ids[0]
        return None

    @property
    def run_in_question(self) -> Run | None:
        """The run under the cursor, or the run of the GPU or event under it; none on the row of a study, whose trials
        are not shown."""
        subject: GpuView | EventView | None
        if self.focused_section == "gpus":
            subject = self.gpu_in_question
        elif self.focused_section == "events":
            subject = self.event_in_question
        else:
            return self.snapshot.run_of(self.table.cursor)
        if subject is None:
            return None
        return self.snapshot.run_of(subject.run_id)

    def context(self) -> Context:
        study = None
        if (study_id := self.study_in_question) is not None:
            study = str(self.snapshot.study_states.get(study_id, "unknown"))
        return replace(
            super().context(),
            marked=self.marked_runs,
            study=study,
            section=self.focused_section,
            gpu=self.gpu_in_question,
            quarantined=frozenset(self.snapshot.machine.quarantined),
        )

    def replacement(self, ids: Sequence[str]) -> str:
        """The row of the study that the run under the cursor has joined, else the first row."""
        run = self.snapshot.run_of(self.table.cursor)
        if run is not None and f"study {run.study_id}" in ids:
            return f"study {run.study_id}"
        return ids[0]

    def keep_cursor(self) -> None:
        """Keep the cursor on its run, GPU or event; when that is gone, move it to the first one."""
        if self._awaited_run in self.row_ids:
            self.point_at(self._awaited_run)
            self._awaited_run = None
        super().keep_cursor()
        snapshot = self.snapshot
        if self.focused_section not in self._sections():
            self.focused_section = "runs"
        event_ids = [event.event_id for event in snapshot.events]
        if self.event_cursor is not None and self.event_cursor not in event_ids:
            self.event_cursor = next(iter(event_ids), None)
        uuids = [gpu.uuid for gpu in snapshot.gpus]
        if self.gpu_cursor not in uuids:
            self.gpu_cursor = next(iter(uuids), None)
        is_focused = self.focused_section == "runs"
        if self.table.is_focused != is_focused:
            self.table = replace(self.table, is_focused=is_focused)

    def _sections(self) -> list[Section]:
        """The sections that can have the cursor now."""
        sections: list[Section] = ["runs"]
        if self.snapshot.gpus and not self.is_folded:
            sections.append("gpus")
        if self.snapshot.events:
            sections.append("events")
        return sections

    def select_run(self, run_id: str) -> None:
        """Put the cursor on a run as soon as it is there."""
        self._awaited_run = run_id
        self.focused_section = "runs"
        self.changed()

    def move(self, by: int) -> None:
        snapshot = self.snapshot
        if self.focused_section == "gpus":
            self.gpu_cursor = neighbour([gpu.uuid for gpu in snapshot.gpus], self.gpu_cursor, by)
        elif self.focused_section == "events":
            ids = [event.event_id for event in snapshot.events]
            self.event_cursor = neighbour(ids, self.event_cursor, by, len(ids) - 1)
        else:
            super().move(by)
            return
        self.changed()

    def _step_section(self, by: int) -> None:
        """Focus the next section, or the previous one with -1, that is not empty."""
        index = SECTIONS.index(self.focused_section)
        sections = self._sections()
        following = (SECTIONS[(index + by * step) % len(SECTIONS)] for step in range(1, len(SECTIONS) + 1))
        self.focus_on(next(section for section in following if section in sections))
        self.changed()

    do_focus_next = partialmethod(_step_section, 1)
    do_focus_previous = partialmethod(_step_section, -1)

    def focus_on(self, section: Section) -> None:
        """Move the cursor into a section, to its last place there."""
        self.focused_section = section
        if section != "events":
            self.event_cursor = None
        elif self.event_cursor is None and self.snapshot.events:
            self.event_cursor = self.snapshot.events[-1].event_id
