"""A list of files to choose from: typed text filters it, and a typed path opens any file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events

from gputui.core.text import cell_width, clean
from gputui.metrics.draw.parts import Line, Span
from gputui.ui.tui.dialogs.palette import best_matches
from gputui.ui.tui.layout.columns import Column, justify, skip_cells
from gputui.ui.tui.layout.lists import Listing, ListState
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.list_page import ListingPage


class FileRow(Struct, frozen=True):
    """A row of the list: a file and its short name."""

    path: Path
    name: str

    @property
    def searched(self) -> str:
        """What is searched beside the name and the path."""
        return ""


Row = TypeVar("Row", bound=FileRow)


def name_cell(row: FileRow, width: int) -> list[Span]:
    """The name of a file, or the end of its path."""
    over = cell_width(row.name) - width
    end = skip_cells([(row.name, "accent")], over + 1)
    if over <= 0:
        return [(row.name, "accent")]
    return [("…", "accent"), *end]


class FileListScreen(ListingPage[Row], Generic[Row]):
    """The list. A typed text with a slash or one that ends in .yaml is a path.

    Attributes:
        rows: None while they are being read.
    """

    OPENS = "choose"
    TITLE: ClassVar[str]
    WHAT: ClassVar[str]
    """What is listed, as in "profile"."""
    VERB: ClassVar[str]
    """What enter does, as in "choose"."""
    PATH_NOTE: ClassVar[str] = "a path opens a file"
    SUFFIXES: ClassVar[tuple[str, ...]] = (".yaml", ".yml")
    """Of the files that are listed for a typed path."""

    def __init__(self) -> None:
        super().__init__(ListState())
        self.edit = LineEdit()
        self.rows: tuple[Row, ...] | None = None
        self._is_chosen_ahead = False

    def interest(self) -> None:
        """None: the list shows nothing of the feed."""

    @abstractmethod
    def columns(self) -> Sequence[Column[Row]]:
        """The columns of the rows."""

    @abstractmethod
    def take(self, path: Path) -> None:
        """Go on with a file."""

    @abstractmethod
    def row_of_file(self, path: Path) -> Row:
        """The row of a file that is no known one."""

    @property
    def matches(self) -> Sequence[Row]:
        """The rows that match; of a typed path also the files that begin so, it itself first."""

        def texts(row: Row) -> tuple[str, str, tuple[int, ...]]:
            return row.name, f"{row.searched} {row.path}", ()

        rows = best_matches(self.rows or (), self.edit.text, texts)
        path = self.chosen_path
        if path is not None:
            listed = {row.path for row in rows}
            rows += [self.row_of_file(file) for file in self._files_at(path) if file not in listed]
            rows.sort(key=lambda row: row.path != path)
        return rows

    def _files_at(self, path: Path) -> list[Path]:
        folder = path.parent
        begun = path.name
        if self.edit.text.rstrip().endswith("/"):
            folder = path
            begun = ""
        try:
            return sorted(
                file for file in folder.iterdir() if file.name.startswith(begun) and file.suffix in self.SUFFIXES
            )
        except OSError:
            return []

    def make_listing(self) -> Listing[Row]:
        return Listing("", self.columns(), {"": self.matches}, lambda row: row.path, empty=self.empty_words())

    def empty_words(self) -> str:
        """The sentence in place of rows."""
        if self.rows is None:
            return f"Reading {self.WHAT}s…"
        if not self.rows:
            doc = "gputui help studies" if "study" in self.WHAT else "gputui help profiles"
            return f"There is no {self.WHAT}; {doc} says how to write one."
        if self.chosen_path is None:
            return f"No {self.WHAT} matches."
        if self.chosen_path.is_file():
            return f"↵ {self.VERB}s this file."
        return "No file begins so."

    def with_filter(self, lines: list[Line], width: int) -> list[Line]:
        """The lines of the list with the title and the typed text in place of the heading."""
        has_room = width >= 76 and not self.edit.text
        note = ""
        if has_room:
            note = f" type to filter · ↵ {self.VERB} · {self.PATH_NOTE} "
        edit = self.edit.spans(max(8, width - len(self.TITLE) - len(note) - 4))
        return [justify([(f" {self.TITLE}  ", "title"), *edit], [(note, "dim")], width), *lines[1:]]

    def rows_read(self, rows: Sequence[Row], near: Path | None = None) -> None:
        """Take the rows, with the cursor on the file ``near``; a choice made before now counts."""
        self.rows = tuple(rows)
        self._type(self.edit)
        self.point_at(near)
        if self._is_chosen_ahead:
            self.do_choose()
        self.changed()

    @property
    def chosen_path(self) -> Path | None:
        """The typed path; None for other text."""
        text = self.edit.text.strip()
        is_path = "/" in text or text.endswith(FileListScreen.SUFFIXES)
        if is_path:
            return Path(text).expanduser().absolute()
        return None

    @property
    def chosen(self) -> Path | None:
        """The file of the row under the cursor; without one the typed path."""
        self.keep_cursor()
        if self.current is None:
            return self.chosen_path
        return self.current.path

    def _type(self, edit: LineEdit) -> None:
        if edit.text != self.edit.text:
            self.table = replace(self.table, cursor=None, top=0)
        self.edit = edit
        self._made = None
        self._cursor_index = 0
        self.shell.message = ("", "info")

    # --- keys

    def take_key(self, event: events.Key) -> bool:
        character = event.character if event.is_printable else None
        edit = self.edit.typed(event.key, character)
        if edit is None or event.key == "question_mark":
            return False
        self._type(edit)
        self.changed()
        return True

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._type(self.edit.insert(event.text))
        self.changed()

    def do_choose(self) -> None:
        path = self.chosen
        self._is_chosen_ahead = self.rows is None
        if self.rows is not None and path is not None:
            if path.is_file():
                self.take(path)
            else:
                self.shell.say(f"There is no file {clean(str(path))}.", "warning")

    def do_cancel(self) -> None:
        if self.edit.text:
            self._type(LineEdit())
            self.changed()
        else:
            self.app.pop_screen()
