"""The page of processes: their table, and what a person can do to one of them."""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.redaction import Redactor, secrets_in
from gputui.core.text import clean
from gputui.metrics.draw.parts import Line, Span
from gputui.runs import identity
from gputui.runs.identity import environment_of, identify
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.dialogs.questions import MenuItem, MenuScreen
from gputui.ui.tui.dialogs.sheet import SheetScreen
from gputui.ui.tui.layout.columns import is_boxed
from gputui.ui.tui.layout.lists import Listing, next_choice
from gputui.ui.tui.pages.processes import view
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.views.snapshot import Interest

SIGNALS = (
    ("t", "TERM", "asks it to end"),
    ("i", "INT", "interrupts it, as ctrl+c would"),
    ("k", "KILL", "ends it at once; it saves nothing"),
    ("s", "STOP", "stops it where it is"),
    ("c", "CONT", "continues it after a stop"),
)


class ProcessesScreen(ListingPage[view.ProcessRow]):
    """All processes on the GPUs and of our runs in one list."""

    SCOPE: ClassVar[Scope] = "processes"
    OPENS = "process_detail"
    ORDERS = view.ORDERS

    table: view.ProcessesState

    def __init__(self) -> None:
        super().__init__(view.ProcessesState())
        self.rows: list[view.ProcessRow] = []

    def interest(self) -> Interest:
        return Interest(processes=True)

    def show_gpu(self, index: int) -> None:
        """Group by GPU, with the cursor on the first process of this one."""
        self.table = replace(self.table, grouping="gpu")
        self.point_at(next((row.key for row in self.listing.rows if index in row.gpus), None))

    def make_listing(self) -> Listing[view.ProcessRow]:
        self.rows = view.process_rows(self.snapshot)
        return view.process_listing(self.snapshot, self.rows, self.table)

    def summary(self) -> list[Span]:
        return [(f" · {view.total_words(self.rows)}", "text")]

    def foot(self, width: int, height: int) -> list[Line]:
        row = self.current
        if row is None or not is_boxed(*self.app.size):
            return []
        return view.detail_lines(row, width)

    def run_id_of(self, row: view.ProcessRow) -> str | None:
        return row.run_id

    def context(self) -> Context:
        if self.current is None:
            return super().context()
        return replace(super().context(), pid=self.current.pid)

    def copyable(self) -> list[Copyable]:
        row = self.current
        if row is None:
            return []
        return [Copyable("the PID", str(row.pid)), *super().copyable()]

    def keep_cursor(self) -> None:
        if self.snapshot.processes is not None or self.snapshot.past is not None or self.table.cursor is None:
            # Else the host's processes, and perhaps the one under the cursor, are still being read.
            super().keep_cursor()

    # --- actions

    def do_process_tree(self) -> None:
        self.table = replace(self.table, is_tree=not self.table.is_tree)

    def do_process_group(self) -> None:
        self.table = replace(self.table, grouping=next_choice(view.GROUPINGS, self.table.grouping))

    def do_process_detail(self) -> None:
        if (row := self.current) is not None:
            texts = [f"{name:<12} {text}" for name, text in view.process_facts(row)]
            self.app.push_screen(SheetScreen(f"Process {row.pid}", texts))

    def do_environment(self) -> None:
        if (row := self.current) is not None:
            title = f"Environment of process {row.pid}"
            # Reading it blocks while the process is stuck in the kernel.
            self.in_thread(
                lambda: environment_texts(row.pid, row.start_ticks),
                lambda texts: self.app.push_screen(SheetScreen(title, texts)),
            )

    def do_signal(self) -> None:
        if (row := self.current) is None:
            return

        def send(name: str, effect: str) -> None:
            number = signal.Signals[f"SIG{name}"]
            self.shell.confirm("Signal", f"Send {name}? It {effect}.", lambda: self._send(row, number))

        items = [MenuItem(key, name, effect, partial(send, name, effect)) for key, name, effect in SIGNALS]
        self.app.push_screen(MenuScreen("Signal", items, _about(row)))

    def _send(self, row: view.ProcessRow, number: signal.Signals) -> None:
        """Send a signal in a thread: calls about a process may block."""
        app = self.shell

        def send() -> None:
            try:
                identity.send_checked_signal(row.pid, row.start_ticks, number)
            except identity.SignalRefusedError as refused:
                app.tell(f"{number.name} was not sent. {refused}", "error")
            else:
                app.tell(f"{number.name} was sent to PID {row.pid}.")

        threading.Thread(target=send, name="work", daemon=True).start()


def _about(row: view.ProcessRow) -> tuple[str, str]:
    """The process that a signal is for, and a warning if it belongs to a run."""
    about = f"PID {row.pid} of {row.user or 'an unknown user'}: {row.command or 'no command is known'}"
    if row.run_id is None:
        return about, ""
    owner = row.run_id if row.rank is None else f"rank {row.rank} of {row.run_id}"
    warning = f"It belongs to {owner}: if it ends, that counts as a failure, and recovery acts."
    return about, f"{warning} To end the run, stop it."


def environment_texts(pid: int, start_ticks: int | None) -> list[str]:
    """The environment of a process without secrets, line by line; or why it cannot be read."""
    environment = environment_of(pid)
    process = identify(pid)
    if start_ticks is None or process is None or process.start_ticks != start_ticks:
        return [f"PID {pid} cannot be tied to a process that is seen here."]
    if not environment:
        return ["Its environment is empty, or cannot be read because it is another user's."]
    redacted = Redactor(secrets_in(environment, {})).env(environment)
    return [clean(f"{name:<12} {redacted[name]}") for name in sorted(redacted)]
