"""The display layer of a Textual app: writes the cells that changed, and nothing else.

Stock Textual writes every region that a widget repainted, blocks its event loop on a terminal that does not read, and
passes on escape sequences inside of text. `DisplayLayer` takes the composed updates instead of Textual's writer.

This is the only module that uses private names of Textual (`PRIVATE_NAMES`); they hold for the version pinned in
pyproject.toml, and `tests/tui/terminal/test_private_names.py` fails when one of them moves.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any, Final, TypeVar

from rich.color import ColorSystem
from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.screen import Screen

from gputui.charts.plain import Characters
from gputui.tui.terminal.grid import CellGrid
from gputui.tui.terminal.link import QUESTION, Line
from gputui.tui.terminal.pens import PenCase

ReturnType = TypeVar("ReturnType")

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

_SYNC_START, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
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


@dataclass(slots=True)
class DisplayCounters:
    """What the screen has cost so far."""

    bytes_written: int = 0
    frames: int = 0
    """Frames that were written; those without a difference are not counted."""
    frames_put_off: int = 0
    """Tries at which the terminal had not yet taken what was written before."""
    last_paint_seconds: float = 0.0
    """Time that the last update took from its strips to the queue of the writer."""


class DisplayLayer(App[ReturnType]):
    """An app, or with another App class a mixin in front of it, that writes only the cells that changed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.display_counters = DisplayCounters()
        # Rich names what it found out about the terminal; without a name there are no colours. Textual takes NO_COLOR
        # for a wish for grey; it asks for none (no-color.org).
        color_system = None if self.no_color else _COLOR_SYSTEMS.get(self.console.color_system or "")
        self._cell_grid = CellGrid(PenCase(color_system))
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._line = Line()

    @property
    def lag_seconds(self) -> float:
        """How far the terminal is behind what was written."""
        return self._line.lag_seconds(monotonic())

    @property
    def characters(self) -> Characters:
        """The characters that are written."""
        return self._cell_grid.characters

    def use_characters(self, characters: Characters) -> None:
        """Write these characters from now on; what is on the screen has to be painted again."""
        self._cell_grid.use_characters(characters)

    def tell_terminal(self, sequence: str) -> None:
        """Write a sequence that changes no cell: a title, the bell, the clipboard, a mode.

        Nothing is written while another program has the terminal.
        """
        writer = getattr(self._driver, "_writer_thread", None)
        if self._driver is not None and writer is not None and writer.is_alive():
            self._driver.write(sequence)

    def write_frame(self, data: str) -> None:
        """Hand one frame to the driver."""
        if self._driver is not None:
            self._driver.write(data)

    def repaint_terminal(self) -> None:
        """Write the whole screen again, whatever the terminal is taken to show."""
        self._cell_grid.mark_unknown()
        self._emit()

    def on_resize(self, event: events.Resize) -> None:
        """A terminal that changed its size, or came back from a suspension, may show anything."""
        self._cell_grid.mark_unknown()
        self._line.forget()
        if event.size == self._size:
            # Nothing will be laid out for a size that is not new.
            self._emit()

    def on_cursor_position(self, _event: events.CursorPosition) -> None:
        """The terminal has drawn a frame and says so."""
        self._line.answered(monotonic())
        if self._cell_grid.is_pending:
            self._emit()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        driver = self._driver
        is_other = renderable is not None and not isinstance(renderable, ChopsUpdate | LayoutUpdate)
        if is_other or (driver is not None and driver.is_inline):
            super()._display(screen, renderable)
            return
        started = perf_counter()
        try:
            # Taken in even where it cannot be shown: the compositor does not offer it a second time.
            if isinstance(renderable, LayoutUpdate):
                self._take_layout(renderable)
            elif isinstance(renderable, ChopsUpdate):
                self._take_chops(renderable)
            self._emit()
            self.display_counters.last_paint_seconds = perf_counter() - started
        except Exception as error:
            self._handle_exception(error)
        finally:
            self.post_display_hook()

    def _take_layout(self, update: LayoutUpdate) -> None:
        region, grid = update.region, self._cell_grid
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
                # Asked for when the screen was higher.
                continue
            for chop_end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                # A chop that overlaps a span is right over its whole width. Outside the spans it need not be: what
                # lies above it may not have been rendered.
                if strip is not None and x < end and chop_end > start:
                    feed(y, x, chop_end - x, strip)

    def _emit(self) -> None:
        """Write the difference, or try again soon when the terminal has not taken the last one."""
        if not self._running or self._closed or self._driver is None:
            return
        if self._batch_count:
            if self._cell_grid.is_pending:
                self._retry_later()
            return
        writer = getattr(self._driver, "_writer_thread", None)
        if writer is not None:
            if not writer.is_alive():
                # Suspended: whoever resumes it posts a resize.
                self._cell_grid.mark_unknown()
                return
            now = monotonic()
            if writer._queue.qsize():
                self._line.stuck(now)
                self.display_counters.frames_put_off += 1
                self._retry_later()
                return
            self._line.flowing(now)
            if not self._line.may_write(now):
                self.display_counters.frames_put_off += 1
                self._retry_later()
                return
        elif hasattr(self._driver, "_writer_thread"):
            return
        self._retry_seconds = _FIRST_RETRY_SECONDS
        frame = self._cell_grid.emit(self.cursor_position)
        if not frame:
            return
        if writer is not None and self._line.should_ask(now := monotonic()):
            frame += QUESTION
            self._line.asked(now)
        size = len(frame.encode())
        if self._sync_available and size >= _SYNC_FROM_BYTES:
            frame = f"{_SYNC_START}{frame}{_SYNC_END}"
            size += len(_SYNC_START) + len(_SYNC_END)
        self.display_counters.bytes_written += size
        self.display_counters.frames += 1
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
