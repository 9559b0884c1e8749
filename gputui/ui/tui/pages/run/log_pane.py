"""The log of a run's page: the choice of the log, and its actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod

from gputui.ui.tui.data.snapshot import LogTail
from gputui.ui.tui.pages.run.log import log_lines
from gputui.ui.tui.pages.run.log_view import LogView
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane


class RunLog:
    """The state and the pane of the log. ``label`` and ``is_deep`` are its request to the feed; ``warn`` shows a
    sentence."""

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
        """Draw the newest tail."""
        self.view.update(tail, height - 1)
        if self._to_try:
            self._seek(tail)
        if tail.lines and len(tail.lines) < height - 1 and not tail.is_whole:
            # Progress bars take many bytes and few lines: older lines must fill the pane.
            self.is_deep = True
        lines = log_lines(self.view, self.edit, width, height, is_focused=is_focused, was_stopped=was_stopped)
        self.pane.show(lines, height=height)

    def _choose(self, by: int) -> None:
        """Show the next log, or the previous one with -1: another rank, stream or earlier attempt."""
        labels = self.view.tail.labels
        here = self.view.tail.label
        if all(each == here for each in labels):
            self._warn("No other log holds anything yet.")
            return
        place = labels.index(here) if here in labels else -by
        self.show(labels[(place + by) % len(labels)])

    do_log_next = partialmethod(_choose, 1)
    do_log_previous = partialmethod(_choose, -1)

    def show(self, label: str) -> None:
        """Show the log with this label."""
        self.label = label
        self.is_deep = False

    def show_traceback(self, labels: Sequence[str], rank: int | None) -> None:
        """Show the newest traceback: of the logs with these labels, first those of ``rank``, then those of other ranks;
        a launcher's own traceback only says that a rank has failed."""
        preferred = [f"rank {rank} stderr", f"rank {rank}"]
        ranks = [name for name in labels if name.startswith("rank ") and " of attempt " not in name]
        ranks.sort(key=lambda name: not name.endswith(" stderr"))
        self._to_try = [*(name for name in preferred if name in labels), *ranks, *labels, None]
        self._to_try = list(dict.fromkeys(self._to_try))
        self.label = self._to_try[0]
        self.is_deep = False

    def _seek(self, tail: LogTail) -> None:
        """Show this log's traceback, or try the next log."""
        if tail.label != self.label and self.label is not None:
            return  # not read yet
        if self.view.to_traceback():
            self._to_try = []
            return
        self._to_try.pop(0)
        self.label = self._to_try[0] if self._to_try else None

    def scroll(self, by: int) -> None:
        """Scroll by lines; at the upper end, request older lines."""
        self.view.scroll(by)
        if by < 0 and self.view.is_at_top:
            self.is_deep = True

    def sideways(self, by: int) -> None:
        """Scroll half a pane to the left (-1) or right (1)."""
        room = max(2, self.pane.size.width - 1)
        self.view.sideways(by * (room // 2), room)

    def to_top(self) -> None:
        self.is_deep = True
        self.view.to_top()

    def search(self, edit: LineEdit | None, text: str) -> None:
        """Search the whole log that is kept."""
        self.edit = edit
        if text:
            self.is_deep = True
        if text != self.view.search.text:
            self.view.look_for(text)

    def _go_to_hit(self, by: int) -> None:
        if not self.view.search.text:
            self._warn("Nothing is searched for yet: go to the log with 3, then /.")
        self.view.next_hit(by)

    do_hit_next = partialmethod(_go_to_hit, 1)
    do_hit_previous = partialmethod(_go_to_hit, -1)

    def do_grave_only(self) -> None:
        self.view.only_grave()

    @property
    def text(self) -> str:
        """Text for copying: the line of the current hit, else all visible lines."""
        if self.view.current_hit is not None:
            return self.view.line(self.view.current_hit)[0]
        return "\n".join(self.view.line(number)[0] for number in self.view.line_numbers)
