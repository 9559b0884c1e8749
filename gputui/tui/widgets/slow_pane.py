"""A pane whose lines cost more to make than they are worth at every snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import cast

from gputui.charts.chart import Line
from gputui.tui.shell import Shell
from gputui.tui.widgets.pane import Pane

REDRAW_SECONDS = 0.9


class SlowPane(Pane):
    """Draws again only what has changed, and news at most about once a second: curves are not read faster, and the
    clock's next snapshot brings what was left out."""

    _shape: Hashable = None
    _news: Sequence[object] = ()
    _drawn_at = float("-inf")

    def show_when(
        self, shape: Hashable, news: Sequence[object], draw: Callable[[], Sequence[Line]], *, height: int
    ) -> None:
        """Show what ``draw`` makes, if ``shape`` (size, settings) is another, or one of the values in ``news`` (the
        data) is another and it is time. Another moment that is looked back at is another shape: it is seen at once."""
        now = time.monotonic()
        shape = (shape, self._moment)
        self.set_height(height)
        is_same = len(news) == len(self._news) and all(a is b or a == b for a, b in zip(news, self._news, strict=True))
        if shape == self._shape and (is_same or now - self._drawn_at < REDRAW_SECONDS):
            return
        self._shape, self._news, self._drawn_at = shape, news, now
        self.show(draw())

    @property
    def _moment(self) -> float | None:
        snapshot = cast("Shell", self.app).snapshot
        return snapshot.at if snapshot.past is not None else None

    def clear(self) -> None:
        self._shape = None
        super().clear()
