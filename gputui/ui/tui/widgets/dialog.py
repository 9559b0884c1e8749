"""The base of dialogs: a frame above a page that asks one question and closes with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.core.text import cell_width, clip
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.shell import Shell, passed_to_top
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane

Answer = TypeVar("Answer")


class Content(NamedTuple):
    """The content of the frame; ``note`` is in its lower edge."""

    title: str
    lines: list[Line]
    note: str = ""


class Dialog(ModalScreen[Answer | None]):
    """A frame that closes with an answer; None if nothing was chosen.

    A subclass implements ``content``, and handles keys in ``press``; if ``edit`` is set, other keys are text.
    """

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64
    PANE_ID: ClassVar = "dialog"
    CLOSING: ClassVar[frozenset[str]] = frozenset({"escape", "ctrl+c"})
    """Keys that close it without an answer."""
    CLOSES_BESIDE: ClassVar = False
    """Whether a click beside the frame closes it."""

    def __init__(self) -> None:
        super().__init__()
        self.pane = Pane(id=self.PANE_ID)
        self.edit: LineEdit | None = None

    @property
    def shell(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    def content(self, width: int) -> Content:
        """The content in lines of ``width`` cells."""
        raise NotImplementedError

    def press(self, key: str) -> bool:
        """Handle a key; False if it means nothing here."""
        return False

    def edited(self) -> None:
        """The typed text has changed."""

    def scroll(self, by: int) -> None:
        """Handle a notch of the wheel: 1 down, -1 up."""

    def click(self, row: int) -> None:
        """Handle a click on line ``row`` of the content, from 0."""

    def compose(self) -> ComposeResult:
        self.draw()
        yield self.pane

    def on_resize(self) -> None:
        self.draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if passed_to_top(self, event):
            return
        if event.key in self.CLOSING:
            self.dismiss(None)
            return
        if not self.press(event.key) and self.edit is not None:
            self._edit_to(self.edit.typed(event.key, event.character))
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        if self.edit is not None:
            self._edit_to(self.edit.insert(event.text))
            self.draw()

    def _edit_to(self, edit: LineEdit | None) -> None:
        if edit is not None:
            self.edit = edit
            self.edited()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll(1)
        self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll(-1)
        self.draw()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.widget is self.pane:
            self.click(event.y - 1)
            self.draw()
        elif self.CLOSES_BESIDE:
            self.dismiss(None)

    def draw(self) -> None:
        """Draw the frame in the middle of the screen."""
        width = min(self.WIDTH, self.app.size.width)
        content = self.content(width - 4)
        shown = box(content.title, content.lines, width, content.note)
        self.pane.styles.width = width
        self.pane.fit(shown)


def box(title: str, lines: Sequence[Line], width: int, note: str = "") -> list[Line]:
    """``lines`` in a frame of ``width`` cells with a title above and a note below."""
    inner = width - 2
    head = clip(f" {title} ", inner)
    foot = clip(f" {note} ", inner) if note else ""
    top: Line = [("╭", "rule"), (head, "title"), ("─" * (inner - cell_width(head)) + "╮", "rule")]
    bottom: Line = [("╰" + "─" * (inner - cell_width(foot)), "rule"), (foot, "dim"), ("╯", "rule")]
    body: list[Line] = [[("│ ", "rule"), *fit_line(line, inner - 2), (" │", "rule")] for line in lines]
    return [top, *body, bottom]
