"""The log of a run's page: which one, and what keys do to it."""

from __future__ import annotations

from collections.abc import Callable

from gputui.tui.data.snapshot import LogTail
from gputui.tui.pages.run.log import log_lines
from gputui.tui.pages.run.log_view import LogView
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.pane import Pane


class RunLog:
    """Holds how the log is looked at, and its pane. ``label`` and ``is_deep`` are what it needs from the feed; ``warn``
    shows a sentence."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        self.below = Pane(id="log")
        self.beside = Pane(id="log_beside")
        self.pane = self.below
        self.view = LogView()
        self.label: str | None = None
        self.is_deep = False
        self.edit: LineEdit | None = None
        self._to_try: list[str | None] = []

    def draw(self, tail: LogTail, width: int, height: int, *, is_focused: bool, was_stopped: bool = False) -> None:
        """Draw what is known."""
        self.view.update(tail, height - 1)
        if self._to_try:
            self._seek(tail)
        if tail.lines and len(tail.lines) < height - 1 and not tail.is_whole:
            # Progress bars take much of a file and few lines: older ones fill the pane.
            self.is_deep = True
        lines = log_lines(self.view, self.edit, width, height, is_focused=is_focused, was_stopped=was_stopped)
        self.pane.show(lines, height=height)

    def do_log_next(self) -> None:
        self._choose(1)

    def do_log_previous(self) -> None:
        self._choose(-1)

    def _choose(self, by: int) -> None:
        """The log of the next rank, stream or attempt before."""
        labels = self.view.tail.labels
        here = self.view.tail.label
        if all(each == here for each in labels):
            self._warn("No other log holds anything yet.")
            return
        place = labels.index(here) if here in labels else -by
        self.show(labels[(place + by) % len(labels)])

    def show(self, label: str) -> None:
        """The log of this label."""
        self.label = label
        self.is_deep = False

    def show_traceback(self, rank: int | None) -> None:
        """Show the newest traceback, first looked for in the logs of ``rank``."""
        labels = self.view.tail.labels
        preferred = [f"rank {rank} stderr", f"rank {rank}", "launcher"]
        self._to_try = [*(name for name in preferred if name in labels), *labels, None]
        self._to_try = list(dict.fromkeys(self._to_try))
        self.label = self._to_try[0]
        self.is_deep = False

    def _seek(self, tail: LogTail) -> None:
        """Stay at this log's traceback, or go on to the next log."""
        if tail.label != self.label and self.label is not None:
            return  # not read yet
        if self.view.to_traceback():
            self._to_try = []
            return
        self._to_try.pop(0)
        self.label = self._to_try[0] if self._to_try else None

    def scroll(self, by: int) -> None:
        """Move by lines; at the upper end older lines are asked for."""
        self.view.scroll(by)
        if by < 0 and self.view.is_at_top:
            self.is_deep = True

    def sideways(self, by: int) -> None:
        """Half a screen to the left, or to the right: for lines that are longer than the pane."""
        room = max(2, self.pane.size.width - 1)
        self.view.sideways(by * (room // 2), room)

    def to_top(self) -> None:
        self.is_deep = True
        self.view.to_top()

    def search(self, edit: LineEdit | None, text: str) -> None:
        """Look for a text, all of the log that is kept for it."""
        self.edit = edit
        if text:
            self.is_deep = True
        if text != self.view.search.text:
            self.view.look_for(text)

    def do_hit_next(self) -> None:
        self._go_to_hit(1)

    def do_hit_previous(self) -> None:
        self._go_to_hit(-1)

    def _go_to_hit(self, by: int) -> None:
        if not self.view.search.text:
            self._warn("Nothing is searched for yet: go to the log with 3, then /.")
        self.view.next_hit(by)

    def do_grave_only(self) -> None:
        self.view.only_grave()

    @property
    def text(self) -> str:
        """What is in the pane, for copying: the line of the current hit, else all of it."""
        if self.view.current_hit is not None:
            return self.view.line(self.view.current_hit)[0]
        return "\n".join(self.view.line(number)[0] for number in self.view.line_numbers)
