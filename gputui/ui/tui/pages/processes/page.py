"""The page of processes: their table, and what a person can do to one of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.message import Message

from gputui.core.redaction import Redactor, secrets_in
from gputui.core.text import clean
from gputui.runs import identity
from gputui.runs.identity import environment_of, identify
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import Interest, Snapshot
from gputui.ui.tui.dialogs.sheet import SheetScreen
from gputui.ui.tui.dialogs.signals import SignalScreen
from gputui.ui.tui.pages.processes.rows import (
    GROUPINGS,
    ORDERS,
    Key,
    ProcessGroup,
    ProcessRow,
    TableState,
    arranged,
    order_named,
    order_of_letter,
    process_rows,
)
from gputui.ui.tui.pages.processes.view import cores_line, detail_texts, items_of, table_lines, total_line
from gputui.ui.tui.widgets.list_page import ListPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.tui.widgets.pane import Pane

CORES_HEIGHT = 30
"""Least height of a page with a line for the CPU cores."""


@dataclass
class EnvironmentRead(Message):
    """The environment of a process, or why there is none."""

    pid: int
    texts: list[str]


class ProcessesScreen(ListPage):
    """All processes on the GPUs and of our runs in one table."""

    SCOPE: ClassVar[Scope] = "processes"

    table: TableState

    def __init__(self) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.total = Pane(id="total")
        self.body = Pane(id="body")
        self.table = TableState()
        self._awaited_gpu: int | None = None
        self._awaits_letter = False
        self._made: tuple[Snapshot | None, TableState, list[ProcessRow], list[ProcessGroup]] = (
            None,
            self.table,
            [],
            [],
        )

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.total, self.body, self.message, self.footer)

    def interest(self) -> Interest:
        return Interest(processes=True)

    def show_gpu(self, index: int) -> None:
        """Group by GPU, with the cursor on the first process of this one."""
        self.table = replace(self.table, grouping="gpu")
        self._awaited_gpu = index

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        self.keep_cursor()
        self.head.show([self.machine_head(width)])
        rows, groups = self._arrange()
        totals = [total_line(rows, snapshot, width)]
        if snapshot.processes is not None and height >= CORES_HEIGHT:
            totals.append(cores_line(snapshot.processes.core_percents, width))
        self.total.fit(totals)
        room = height - 1 - len(totals) - self.draw_frame(width)
        self.page_rows = room - 4
        self.scroll_to_cursor(room - 2)
        lines = table_lines(snapshot, groups, self.table, width, room, listed=len(rows))
        self.body.show(self.with_filter(lines, width), height=room)

    def _arrange(self) -> tuple[list[ProcessRow], list[ProcessGroup]]:
        """All rows, and the arranged ones. Cached until the snapshot, the filter or the order changes."""
        state = replace(self.table, cursor=None, top=0)
        if self._made[0] is not self.snapshot or self._made[1] != state:
            rows = process_rows(self.snapshot)
            self._made = (self.snapshot, state, rows, arranged(rows, state))
        return self._made[2], self._made[3]

    @property
    def shown_rows(self) -> list[ProcessRow]:
        """The rows in the order of the screen."""
        return [row for group in self._arrange()[1] for row in group.rows]

    # --- the cursor

    @property
    def row_in_question(self) -> ProcessRow | None:
        """The process under the cursor."""
        return next((row for row in self.shown_rows if row.key == self.table.cursor), None)

    @property
    def run_in_question(self) -> Run | None:
        row = self.row_in_question
        return None if row is None else self.snapshot.run_of(row.run_id)

    def context(self) -> Context:
        row = self.row_in_question
        return replace(super().context(), pid=row.pid if row else None)

    def copyable(self) -> list[Copyable]:
        row = self.row_in_question
        return [] if row is None else [Copyable("the PID", str(row.pid)), *super().copyable()]

    @property
    def row_ids(self) -> list[Key]:
        return [row.key for row in self.shown_rows]

    def keep_cursor(self) -> None:
        rows = self.shown_rows
        if self._awaited_gpu is not None and rows:
            wanted = next((row for row in rows if self._awaited_gpu in row.gpus), None)
            self._awaited_gpu = None
            if wanted is not None:
                self.point_at(wanted.key)
        if self.snapshot.processes is None and self.snapshot.past is None:
            # Back on this page: the host's processes, and with them the keys of rows, are still being read.
            return
        super().keep_cursor()

    def replacement(self, ids: Sequence[Key]) -> Key:
        """The row that took the place of the ended process."""
        return ids[min(max(0, self.table.top), len(ids) - 1)]

    def scroll_to_cursor(self, room: int) -> None:
        """As in a `ListPage`, but rows are under headings, and that of the cursor's group stays in sight."""
        items = items_of(self._arrange()[1])
        place = next(
            (n for n, item in enumerate(items) if not isinstance(item, str) and item.key == self.table.cursor), 0
        )
        room = max(1, room)
        top = min(self.table.top, place, max(0, len(items) - room))
        top = max(top, place - room + 1)
        if top == place and place > 0 and isinstance(items[place - 1], str):
            top -= 1
        self.table = replace(self.table, top=max(0, top))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked process; a double click shows its details."""
        items = items_of(self._arrange()[1])
        place = self.table.top + event.y - 2
        if event.widget is self.body and event.y >= 2 and place < len(items):
            item = items[place]
            if not isinstance(item, str):
                self.point_at(item.key)
                if event.chain == 2:
                    self.do_process_detail()
                self.changed()

    # --- what is shown

    def do_sort(self) -> None:
        """Sort by the next order; the following key may choose one by its letter."""
        place = ORDERS.index(order_named(self.table.order))
        self.table = replace(self.table, order=ORDERS[(place + 1) % len(ORDERS)].name)
        self._awaits_letter = True
        letters = " · ".join(f"{order.letter} {order.words.removeprefix('by ')}" for order in ORDERS)
        self.shell.say(f"Sorted {order_named(self.table.order).words}; a letter chooses: {letters}")
        self.changed()

    def take_key(self, event: events.Key) -> bool:
        awaits, self._awaits_letter = self._awaits_letter, False
        order = order_of_letter(event.key) if awaits and self.line is None else None
        if order is None:
            return super().take_key(event)
        self.table = replace(self.table, order=order.name)
        self.shell.say(f"Sorted {order.words}.")
        self.changed()
        return True

    def do_reverse(self) -> None:
        self.table = replace(self.table, is_reversed=not self.table.is_reversed)
        self.changed()

    def do_process_tree(self) -> None:
        self.table = replace(self.table, is_tree=not self.table.is_tree)
        self.changed()

    def do_process_group(self) -> None:
        place = GROUPINGS.index(self.table.grouping)
        self.table = replace(self.table, grouping=GROUPINGS[(place + 1) % len(GROUPINGS)])
        self.changed()

    # --- what is done

    def do_process_detail(self) -> None:
        row = self.row_in_question
        if row is not None:
            self.app.push_screen(SheetScreen(f"Process {row.pid}", detail_texts(row)))

    def do_process_run(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.shell.open_run(run.run_id)

    def do_environment(self) -> None:
        row = self.row_in_question
        if row is None:
            return

        def work() -> None:
            # Blocks while the process is stuck in the kernel.
            self.post_message(EnvironmentRead(row.pid, environment_texts(row.pid, row.start_ticks)))

        threading.Thread(target=work, name="environment", daemon=True).start()

    def on_environment_read(self, message: EnvironmentRead) -> None:
        self.app.push_screen(SheetScreen(f"Environment of process {message.pid}", message.texts))

    def do_kill(self) -> None:
        row = self.row_in_question
        if row is not None:
            about, warning = _about(row)
            text = f"{about} It is killed at once (SIGKILL), without a chance to save. {warning}"
            self.shell.confirmed(f"Kill process {row.pid}?", text, lambda: self._send(row, signal.SIGKILL))

    def do_signal(self) -> None:
        row = self.row_in_question
        if row is None:
            return
        about, warning = _about(row)

        def decide(number: signal.Signals | None) -> None:
            if number is not None:
                self._send(row, number)

        self.app.push_screen(SignalScreen(about, warning), decide)

    def _send(self, row: ProcessRow, number: signal.Signals) -> None:
        """Send a signal in a thread: calls about a process may block."""
        app = self.shell

        def work() -> None:
            try:
                identity.send_checked_signal(row.pid, row.start_ticks, number)
            except identity.SignalRefusedError as refused:
                app.tell(f"{number.name} was not sent. {refused}", "error")
            else:
                app.tell(f"{number.name} was sent to PID {row.pid}.", "info")

        threading.Thread(target=work, name="signalling", daemon=True).start()


def _about(row: ProcessRow) -> tuple[str, str]:
    """The process that a signal is for, and a warning if it belongs to a run."""
    about = f"PID {row.pid} of {row.user or 'an unknown user'}: {row.command or 'no command is known'}"
    if row.run_id is None:
        return about, ""
    rank = "" if row.rank is None else f"rank {row.rank} of "
    warning = (
        f"It belongs to {rank}{row.run_id}: if it ends, that counts as a failure, and recovery acts. "
        "To end the run, stop it."
    )
    return about, warning


def environment_texts(pid: int, start_ticks: int | None) -> list[str]:
    """The environment of a process without secrets, one variable per line; or a sentence why it cannot be read."""
    found = environment_of(pid)
    now = identify(pid)
    if start_ticks is None or now is None or now.start_ticks != start_ticks:
        return [f"PID {pid} cannot be tied to a process that is seen here."]
    if not found:
        return ["Its environment is empty, or cannot be read because it is another user's."]
    hidden = Redactor(secrets_in(found, {})).env(found)
    return [clean(f"{name:<12} {hidden[name]}") for name in sorted(hidden)]
