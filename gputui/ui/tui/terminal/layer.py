"""The display layer of a Textual app: writes only the cells that changed.

Textual itself writes every region that a widget repainted, blocks its event loop on a terminal that does not read, and
passes on escape sequences in text. `DisplayLayer` replaces its writer. `TerminalLink` holds frames back while the
terminal has not drawn the previous ones.

This is the only module that uses private names of Textual (`PRIVATE_NAMES`); they hold for the version pinned in
pyproject.toml, and `tests/ui/tui/terminal/test_private_names.py` fails when one of them moves.
"""

import asyncio
from time import monotonic
from typing import Any, Final, TypeVar

import textual.screen
from rich.color import ColorSystem
from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.geometry import Region
from textual.screen import ModalScreen, Screen
from textual.strip import Strip

from gputui.metrics.draw.glyphs import Characters
from gputui.ui.tui.terminal.grid import CellGrid
from gputui.ui.tui.terminal.pens import PenCase

QUESTION = "\x1b[6n"
"""The terminal answers with the position of its cursor."""

HOLD_SECONDS = 0.25
"""Frames are held back if an answer takes longer than this plus twice the quickest one."""

LOST_SECONDS = 6.0
"""An answer that takes longer than this is taken for lost."""

QUESTIONS_WITHOUT_ANSWER = 3
"""After this many, the terminal is taken for one that does not answer."""

FORGET_SECONDS = 5.0
"""How long a measured lag is shown."""

PRIVATE_NAMES: Final = {
    "app": (
        "_batch_count",
        "_closed",
        "_display",
        "_driver",
        "_handle_exception",
        "_running",
        "_size",
        "_sync_available",
    ),
    "driver": ("_writer_thread",),
    "writer": ("_queue",),
}
"""Private attributes this module relies on, beside the two update classes of the compositor."""

PAINT_SECONDS: Final = 1 / 250
"""Least time between two paints. Textual's 1/60 s would delay what a key changes, twice where a page opens."""

_SYNC_START = "\x1b[?2026h"
_SYNC_END = "\x1b[?2026l"
_SYNC_FROM_BYTES = 1000
"""Smaller frames arrive whole anyway; the 16 bytes around them are saved."""

_FIRST_RETRY_SECONDS = 0.01
_LONGEST_RETRY_SECONDS = 0.08

_COLOR_SYSTEMS: Final = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}


class TerminalLink:
    """The lag of one terminal, measured by its own answers. Times are monotonic seconds.

    Written frames may wait for seconds in the buffers of ssh. So a frame ends with a request for the cursor's position
    (DSR 6, ECMA-48 8.3.35), which terminals since the VT100 answer once they have drawn it. While an answer is overdue,
    no frame is written; the next one carries the whole difference. Until the first answer, no frame is held back, so
    that a terminal that never answers works.
    """

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._unanswered = 0
        self._has_answered = False
        self._quickest = float("inf")
        self._lag = 0.0
        self._lag_at = float("-inf")
        self._stuck_since: float | None = None

    def may_write(self, now: float) -> bool:
        """Return whether a frame would be drawn soon."""
        if self._asked_at is None or not self._has_answered:
            return True
        waited = now - self._asked_at
        if waited >= LOST_SECONDS:
            self._give_up(now)
            return True
        return waited < HOLD_SECONDS + 2 * min(self._quickest, LOST_SECONDS)

    def should_ask(self, now: float) -> bool:
        """Return whether the next frame should end with the question."""
        if self._asked_at is not None and now - self._asked_at >= LOST_SECONDS:
            self._give_up(now)
        return self._asked_at is None and (self._has_answered or self._unanswered < QUESTIONS_WITHOUT_ANSWER)

    def note_question(self, now: float) -> None:
        """Note that a frame with the question was written."""
        self._asked_at = now

    def note_answer(self, now: float) -> None:
        """Note that the terminal has answered."""
        if self._asked_at is None:
            return
        self._has_answered = True
        self._unanswered = 0
        self._note_lag(now - self._asked_at, now)
        self._quickest = min(self._quickest, now - self._asked_at)
        self._asked_at = None

    def note_frame(self, is_taken: bool, now: float) -> None:
        """Note whether the operating system has taken the last frame."""
        if is_taken and self._stuck_since is not None:
            self._note_lag(now - self._stuck_since, now)
            self._stuck_since = None
        elif not is_taken and self._stuck_since is None:
            self._stuck_since = now

    def forget(self) -> None:
        """Expect no answer: another program that had the terminal may have received it."""
        self._asked_at = self._stuck_since = None

    def lag_seconds(self, now: float) -> float:
        """The lag of the last frame, so far if it is not drawn yet."""
        lag = 0.0
        if now - self._lag_at < FORGET_SECONDS:
            lag = self._lag
        if self._asked_at is not None and self._has_answered:
            lag = max(lag, now - self._asked_at)
        if self._stuck_since is not None:
            lag = max(lag, now - self._stuck_since)
        return lag

    def _note_lag(self, lag: float, now: float) -> None:
        self._lag = lag
        self._lag_at = now

    def _give_up(self, now: float) -> None:
        if self._has_answered and self._asked_at is not None:
            self._note_lag(now - self._asked_at, now)
        self._unanswered += 1
        self._asked_at = None


ReturnType = TypeVar("ReturnType")


setattr(textual.screen, "UPDATE_PERIOD", PAINT_SECONDS)  # noqa: B010 - declared Final


class DisplayLayer(App[ReturnType]):
    """An app, or with another App class a mixin in front of it, that writes only the cells that changed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Rich detects the colours of the terminal; None is no colours. Textual makes NO_COLOR grey, but it means no
        # colour (no-color.org).
        color_system = None
        if not self.no_color:
            color_system = _COLOR_SYSTEMS.get(self.console.color_system or "")
        self._cell_grid = CellGrid(PenCase(color_system))
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._link = TerminalLink()

    @property
    def lag_seconds(self) -> float:
        """The terminal's lag in seconds."""
        return self._link.lag_seconds(monotonic())

    @property
    def characters(self) -> Characters:
        """The set of characters in use."""
        return self._cell_grid.characters

    def use_characters(self, characters: Characters) -> None:
        """Use these characters from now on. The caller must paint the screen again."""
        self._cell_grid.use_characters(characters)

    def write_sequence(self, sequence: str) -> None:
        """Write a sequence that changes no cell (title, bell, clipboard, mode), unless another program has the
        terminal."""
        writer = getattr(self._driver, "_writer_thread", None)
        if self._driver is not None and writer is not None and writer.is_alive():
            self._driver.write(sequence)

    def write_frame(self, data: str) -> None:
        """Hand one frame to the driver."""
        if self._driver is not None:
            self._driver.write(data)

    def on_resize(self, event: events.Resize) -> None:
        """Assume nothing about a terminal that changed its size or was resumed."""
        self._cell_grid.mark_unknown()
        self._link.forget()
        if event.size == self._size:
            # Without a new size, Textual lays out nothing.
            self._emit()

    def on_cursor_position(self, _event: events.CursorPosition) -> None:
        """Take the terminal's answer that it has drawn a frame."""
        self._link.note_answer(monotonic())
        if self._cell_grid.is_pending:
            self._emit()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        driver = self._driver
        is_other = renderable is not None and not isinstance(renderable, ChopsUpdate | LayoutUpdate)
        if is_other or (driver is not None and driver.is_inline):
            super()._display(screen, renderable)
            return
        try:
            # Taken even if it cannot be shown now: the compositor offers it only once.
            if isinstance(renderable, LayoutUpdate):
                self._take_layout(renderable)
            elif isinstance(renderable, ChopsUpdate):
                self._take_chops(renderable)
            self._emit()
        except Exception as error:
            self._handle_exception(error)
        finally:
            self.post_display_hook()

    def _take_layout(self, update: LayoutUpdate) -> None:
        region = update.region
        grid = self._cell_grid
        grid.resize(region.right, region.bottom)
        for y, strips in enumerate(update.strips, region.y):
            x = region.x
            for strip in strips:
                grid.feed(y, x, strip.cell_length, strip)
                x += strip.cell_length

    def _take_chops(self, update: ChopsUpdate) -> None:
        feed = self._cell_grid.feed
        for y, start, end in update.spans:
            if y >= len(update.chops):
                # Requested while the screen was higher.
                continue
            for chop_end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                # A chop that overlaps a span is valid over its whole width. Others may lack what lies above them.
                if strip is not None and x < end and chop_end > start:
                    feed(y, x, chop_end - x, strip)

    def _emit(self) -> None:
        """Write the difference, or try again soon if the terminal has not taken the previous one."""
        if not self._running or self._closed or self._driver is None:
            return
        if self._batch_count:
            if self._cell_grid.is_pending:
                self._retry_later()
            return
        writer = getattr(self._driver, "_writer_thread", None)
        if writer is not None:
            if not writer.is_alive():
                # Suspended: resuming posts a resize.
                self._cell_grid.mark_unknown()
                return
            now = monotonic()
            is_taken = not writer._queue.qsize()
            self._link.note_frame(is_taken, now)
            if not is_taken or not self._link.may_write(now):
                self._retry_later()
                return
        elif hasattr(self._driver, "_writer_thread"):
            return
        self._retry_seconds = _FIRST_RETRY_SECONDS
        frame = self._cell_grid.emit(self.cursor_position)
        if not frame:
            return
        if writer is not None and self._link.should_ask(now := monotonic()):
            frame += QUESTION
            self._link.note_question(now)
        if self._sync_available and len(frame.encode()) >= _SYNC_FROM_BYTES:
            frame = f"{_SYNC_START}{frame}{_SYNC_END}"
        self.write_frame(frame)

    def _retry_later(self) -> None:
        if self._retry_timer is None:
            self._retry_timer = asyncio.get_running_loop().call_later(self._retry_seconds, self._retry)
            self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)

    def _retry(self) -> None:
        self._retry_timer = None
        try:
            self._emit()
        except Exception as error:
            self._handle_exception(error)


class Overlay(ModalScreen[ReturnType]):
    """A dialog over the screen below, which is taken as it was painted: Textual would render it anew by Rich, in two
    thirds of the time in which a dialog opens."""

    def render_lines(self, crop: Region) -> list[Strip]:
        stack = self.app.screen_stack
        painted: list[Strip] = []
        if self in stack[1:]:
            below = stack[stack.index(self) - 1]
            painted = below._compositor.render_strips(self.size)[crop.y : crop.bottom]
        blank = [Strip.blank(crop.width)] * (crop.height - len(painted))
        # While a terminal grows, the screen below is still as narrow as it was.
        return [*(strip.crop(crop.x, crop.right).adjust_cell_length(crop.width) for strip in painted), *blank]
