"""Which profile to launch from: a list to filter, what was used last on top; a typed path opens any file."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from gputui.charts.cells import clip_middle
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import ago
from gputui.config import Workspace
from gputui.store.runs import Run
from gputui.tui.actions import Scope
from gputui.tui.dialogs.palette import ranked
from gputui.tui.layout.columns import Column, between, fit_line, head_line, place, row_line, selected
from gputui.tui.pages.launch.form import Prefill
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.pages.launch.plan import is_same_file, profile_path, read_profiles
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.page import ActionScreen, bindings_for
from gputui.tui.widgets.pane import Pane

if TYPE_CHECKING:
    from gputui.profiles.loading import ProfileEntry


class ProfileRow(NamedTuple):
    """One profile of the list. ``missing`` says what it lacks on this machine; ``used_at`` is UTC unix seconds."""

    path: Path
    name: str
    description: str
    gpus: str
    used_at: float | None
    missing: str


class RowsRead(Message):
    """The profiles were read."""

    def __init__(self, rows: Sequence[ProfileRow]) -> None:
        super().__init__()
        self.rows = tuple(rows)


def profile_rows(
    workspace: Workspace, cwd: Path, runs: Sequence[Run], gpu_count: int, environ: Mapping[str, str]
) -> list[ProfileRow]:
    """Every profile that has a name, and every file that a run came from: what was used last first, then what can be
    launched here. Slow the first time."""
    used: dict[str, float] = {}
    for run in runs:
        path = profile_path(run)
        key = path or run.profile
        used[key] = max(used.get(key, 0.0), run.created_at)
    entries = list(read_profiles(workspace, cwd, tuple(path for path in used if path.startswith("/"))))
    rows = [_row(entry, used, gpu_count, environ) for entry in entries]
    return sorted(rows, key=lambda row: (-(row.used_at or 0.0), bool(row.missing)))


def _row(entry: ProfileEntry, used: Mapping[str, float], gpu_count: int, environ: Mapping[str, str]) -> ProfileRow:
    at = max((used[key] for key in (str(entry.path.resolve()), entry.name) if key in used), default=None)
    profile = entry.profile
    if profile is None:
        problem = str(entry.error).splitlines()[0] if str(entry.error) else "cannot be read"
        return ProfileRow(entry.path, clean(entry.name), "", "", at, clean(f"broken: {problem}"))
    wanted = profile.form.gpus
    count = 1 if wanted.is_all else wanted.count or len(wanted.devices)
    gpus = "all GPUs" if wanted.is_all else "CPU" if not count else "1 GPU" if count == 1 else f"{count} GPUs"
    missing = f"needs {count} GPUs, this machine has {gpu_count}" if count > gpu_count else ""
    if not missing:
        missing = _missing_data(entry, environ)
    return ProfileRow(entry.path, clean(entry.name), clean(profile.description), gpus, at, missing)


def _missing_data(entry: ProfileEntry, environ: Mapping[str, str]) -> str:
    from gputui.profiles.preflight import missing_data
    from gputui.profiles.resolve import ResolveError, working_directory

    assert entry.profile is not None
    try:
        workdir = working_directory(entry.profile, environ)
    except ResolveError:
        return ""
    params = {name: parameter.default for name, parameter in entry.profile.parameters.items()}
    return ", ".join(f"needs {name} ({clean(str(params[name]))})" for name, _ in missing_data(params, workdir, environ))


class ChooseProfileScreen(ActionScreen):
    """The list. What is typed filters it; a path (with a slash, or ending in .yaml) names a file to open."""

    SCOPE: ClassVar[Scope] = "profiles"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("profiles")

    def __init__(self, near: str | None = None) -> None:
        """``near``: the path of the profile that the cursor begins on."""
        super().__init__()
        self.pane = Pane(id="profiles")
        self.edit = LineEdit()
        self.rows: tuple[ProfileRow, ...] | None = None
        self._near = near
        self._place = 0
        self._top = 0
        self._room = 1
        self._is_taken_ahead = False

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.notice
        yield self.pane
        yield self.message
        yield self.footer

    def on_mount(self) -> None:
        workspace, snapshot = self.shell.workspace, self.snapshot
        runs, gpu_count = [row.run for row in snapshot.runs], len(snapshot.gpus)

        def work() -> None:
            self.post_message(RowsRead(profile_rows(workspace, Path.cwd(), runs, gpu_count, os.environ)))

        threading.Thread(target=work, name="profiles", daemon=True).start()

    def interest(self) -> None:
        """The list shows nothing of the feed's."""

    def on_rows_read(self, message: RowsRead) -> None:
        self.rows = message.rows
        if self._near is not None:
            near = self._near
            self._place = next((n for n, row in enumerate(self.found) if is_same_file(row.path, near)), 0)
        if self._is_taken_ahead:
            self.do_choose()
        self.changed()

    @property
    def found(self) -> Sequence[ProfileRow]:
        """The rows that fit what was typed."""
        return ranked(self.rows or (), self.edit.text, lambda row: (row.name, f"{row.description} {row.path}", True))

    def draw(self, width: int, height: int) -> None:
        rows = height - self.draw_frame(width)
        found = self.found
        note = [("type to filter · ↵ choose · a path opens a file ", "dim")]
        lines: list[Line] = [
            between([(" Launch  ", "title"), *self.edit.spans(max(8, width - 62))], note if width >= 76 else [], width)
        ]
        placed = place(_COLUMNS, width - 2)
        lines.append([("  ", "text"), *head_line(placed, width - 2)])
        self._room = max(1, rows - len(lines))
        self._top = min(max(self._top, self._place - self._room + 1), max(0, self._place))
        for number, row in enumerate(found[self._top : self._top + self._room], self._top):
            line: Line = [("  ", "text"), *row_line(placed, (row, self.snapshot.at), width - 2)]
            lines.append(selected(line) if number == self._place else line)
        if not found:
            lines.append(fit_line([(f"  {self._nothing()}", "dim")], width))
        self.pane.show(lines, height=rows)

    def _nothing(self) -> str:
        if self.rows is None:
            return "Reading profiles…"
        if not self.rows:
            return "There is no profile; docs/profiles.md says how to write one."
        return "↵ opens this file." if self._is_path else "No profile matches."

    @property
    def _is_path(self) -> bool:
        return "/" in self.edit.text or self.edit.text.endswith((".yaml", ".yml"))

    # --- keys

    def on_key(self, event: events.Key) -> None:
        if event.key == "question_mark":
            return
        edit = self.edit.typed(event.key, event.character if event.is_printable else None)
        if edit is None:
            return
        event.stop()
        self.shell.message = ("", "info")
        if edit.text != self.edit.text:
            self._place = 0
        self.edit = edit
        self.changed()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.edit, self._place = self.edit.insert(event.text), 0
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """A click chooses a profile, a second one opens it."""
        number = self._top + event.y - 2
        if event.widget is self.pane and event.y >= 2 and number < len(self.found):
            self._place = number
            if event.chain == 2:
                self.do_choose()
            self.changed()

    def _move(self, by: int) -> None:
        self._place = min(max(0, self._place + by), max(0, len(self.found) - 1))

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def do_page_up(self) -> None:
        self._move(-self._room)

    def do_page_down(self) -> None:
        self._move(self._room)

    def do_choose(self) -> None:
        """Open the form with the profile under the cursor, or with the file whose path is typed."""
        if self.rows is None:
            self._is_taken_ahead = True
            return
        found = self.found
        if self._is_path and not found:
            path = Path(self.edit.text.strip()).expanduser().absolute()
            if not path.is_file():
                self.shell.say(f"There is no file {clean(str(path))}.", "warning")
                return
        elif found:
            path = found[min(self._place, len(found) - 1)].path
        else:
            return
        self.app.push_screen(LaunchScreen(Prefill(path.stem, path=str(path))))

    def do_cancel(self) -> None:
        if self.edit.text:
            self.edit, self._place = LineEdit(), 0
        else:
            self.app.pop_screen()


_Row = tuple[ProfileRow, float]


def _state(item: _Row, width: int) -> list[Span]:
    row, now = item
    if row.missing:
        return [(row.missing, "warn")]
    return [(f"used {ago(now - row.used_at)}" if row.used_at is not None else "", "dim")]


_COLUMNS: tuple[Column[_Row], ...] = (
    Column("PROFILE", 18, lambda item, width: [(clip_middle(item[0].name, width), "accent")], grow=1, most=32),
    Column("", 20, lambda item, width: [(item[0].description, "text")], importance=1, grow=3),
    Column("GPUS", 8, lambda item, width: [(item[0].gpus, "text")]),
    Column("LAST USED", 24, _state, grow=2, most=60),
)
