"""Which stretch of the x axis a chart shows, and where the crosshair stands. Pure: every key gives a new value."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gputui.charts.axes import stable_end
from gputui.charts.envelope import Bin

ZOOM_FACTOR = 2.0
PAN_SHARE = 0.25
"""How much of what is shown one key press moves the window by."""

_FOLLOW_SHARE = 0.25
"""A window that follows the newest point moves on by this much of its span at once, not with every point."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The first and the newest x of the data, and the smallest stretch worth looking at."""

    first: float
    newest: float
    resolution: float = 1.0

    @property
    def whole(self) -> tuple[float, float]:
        """The window that shows everything, with an end that seldom moves."""
        start = 0.0 if 0 <= self.first <= 0.1 * self.newest else self.first
        end = stable_end(self.newest)
        return (start, end) if end > start else (start, start + self.resolution)


@dataclass(frozen=True, slots=True)
class Viewport:
    """`span` None shows everything; `end` None follows the newest point."""

    span: float | None = None
    end: float | None = None

    def window(self, extent: Extent) -> tuple[float, float]:
        """The ends of the x axis now."""
        if self.span is None:
            return extent.whole
        end = self.end
        if end is None:
            pace = self.span * _FOLLOW_SHARE
            end = (math.floor(extent.newest / pace) + 1) * pace
        return end - self.span, end

    def zoomed_in(self, extent: Extent, about: float | None) -> "Viewport":
        """Half as much; `about` keeps its place, without it the window ends with the newest point."""
        start, end = self.window(extent)
        span = (end - start) / ZOOM_FACTOR
        if span < 4 * extent.resolution:
            return self
        if about is None or not start <= about <= end:
            return replace(self, span=span)
        return Viewport(span, end=about + (end - about) / ZOOM_FACTOR)

    def zoomed_out(self, extent: Extent, about: float | None) -> "Viewport":
        """Twice as much, at most everything."""
        start, end = self.window(extent)
        whole_start, whole_end = extent.whole
        span = (end - start) * ZOOM_FACTOR
        if self.span is None or span >= whole_end - whole_start:
            return Viewport()
        if self.end is None:
            return Viewport(span)
        at = about if about is not None and start <= about <= end else (start + end) / 2
        return Viewport(span, min(max(at + (end - at) * ZOOM_FACTOR, whole_start + span), whole_end))

    def panned(self, extent: Extent, by: int) -> "Viewport":
        """Moved by quarters of its span; at the right end it follows the newest point."""
        if self.span is None:
            return self
        whole_start, _ = extent.whole
        _, end = self.window(extent)
        moved = max(end + by * PAN_SHARE * self.span, whole_start + self.span)
        follows = by > 0 and moved >= extent.newest
        return Viewport(self.span, None if follows else moved)


def stepped(bins: Sequence[Bin], x: float, by: int, least: float) -> float:
    """The crosshair moved from point to point, `least` further at least; it stays within the data."""
    if not bins:
        return x
    if by > 0:
        place = bisect.bisect_left(bins, x + by * least, key=lambda each: each.last_x)
        return max(bins[min(place, len(bins) - 1)].last_x, x)
    place = bisect.bisect_right(bins, x + by * least, key=lambda each: each.last_x) - 1
    return min(bins[max(place, 0)].last_x, x) if place >= 0 else bins[0].first_x
