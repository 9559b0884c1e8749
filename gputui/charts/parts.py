"""What a chart is made of: curves, markers, axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gputui.charts.axes import AxisKind, LogScale, Scale
from gputui.charts.envelope import Bin
from gputui.charts.raster import Span

XKind = Literal["number", "count", "time"]
"""What an x axis is of: numbers, whole numbers only, or seconds."""

Line = list[Span]
"""One line of a chart: pieces of text with the keys of their styles."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    `label` and `value` (its newest value, or the one under the cursor) go into the legend; a curve with neither has no
    place there. A shadow, such as the raw values behind their average, is drawn only where no other curve is.
    `is_strong` draws the line twice as thick, `area` names the style of what lies below it, `shape` is a sign that
    is drawn along it here and there, so that curves differ without colour, and `end` is written to the right of
    its newest value.
    """

    bins: Sequence[Bin]
    style: str = "series.0"
    label: str = ""
    value: float | None = None
    is_shadow: bool = False
    is_strong: bool = False
    area: str = ""
    shape: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """A place on the x axis, such as a restart: a vertical line with a short label below the axis, or with `is_line`
    off only a notch in the axis."""

    x: float
    label: str = ""
    style: str = "marker"
    is_line: bool = True


@dataclass(frozen=True, slots=True)
class XAxis:
    """The horizontal axis; ends left `None` follow the curves, the right one in round steps. Time is in seconds. The
    place of the `newest` value is labelled beside the ticks. `names` are at 0, 1, 2 … in place of numbers; each is as
    many cells wide as it has characters.

    On a logarithmic axis nothing at 0 or before has a place; without anything behind 0 it is drawn linear.
    """

    name: str = ""
    start: float | None = None
    end: float | None = None
    kind: XKind = "number"
    scale: AxisKind = "linear"
    newest: float | None = None
    names: tuple[str, ...] = ()

    def words(self, scale: Scale) -> str:
        """Its name as it is drawn, and of what kind it is where that is not the usual."""
        if self.scale == "linear":
            return self.name
        is_log = isinstance(scale, LogScale)
        return ", ".join(filter(None, [self.name, "log" if is_log else "linear: nothing above 0"]))


@dataclass(frozen=True, slots=True)
class YAxis:
    """The value axis; ends left `None` follow the curves in round steps.

    Ticks of a linear axis are equally many rows apart, at round multiples of `unit`: of 2³⁰ for values in bytes. A
    logarithmic axis without a positive value to show is drawn linear, and the legend says so.
    """

    kind: AxisKind = "linear"
    low: float | None = None
    high: float | None = None
    label: Callable[[float], str] | None = field(default=None)
    unit: float = 1.0
