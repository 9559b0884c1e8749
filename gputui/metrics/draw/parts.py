"""The parts of a chart: curves, markers, axes."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.scales import AxisKind, LogScale, Scale

XKind = Literal["number", "count", "time"]
"""The quantity of an x axis: numbers, whole numbers, or seconds."""

Span = tuple[str, str]
"""A piece of text and the key of its style."""

Line = list[Span]
"""One line of text: pieces with the keys of their styles."""


class Curve(Struct, frozen=True):
    """One series of a chart.

    Attributes:
        bins: in order of x.
        style: the key of its style.
        label: its name in the legend.
        value: its newest value, in the legend.
        is_shadow: it is drawn only in cells that no other curve goes through. Of other curves, what varies within a bin
            as much as usual is drawn as a line; of a shadow, nothing is.
        is_strong: its line is two dots thick.
        shape: a sign at the end of its line and in the legend.
        end: the text right of its newest value.
    """

    bins: Sequence[Bin]
    style: str = "series.0"
    label: str = ""
    value: float | None = None
    is_shadow: bool = False
    is_strong: bool = False
    shape: str = ""
    end: str = ""


class Marker(Struct, frozen=True):
    """A place on the x axis, such as a restart: a vertical line with a short label below the axis
    or, if not `is_line`, a notch in the axis."""

    x: float
    label: str = ""
    style: str = "marker"
    is_line: bool = True


class XAxis(Struct, frozen=True):
    """The horizontal axis.

    Attributes:
        start: the lowest x, None to follow the curves.
        end: the highest x, None to follow the curves.
        scale: a logarithmic one without an x above 0 is drawn linear.
        names: labels at 0, 1, 2 …, of characters one cell wide, in place of numbers.
    """

    name: str = ""
    start: float | None = None
    end: float | None = None
    kind: XKind = "number"
    scale: AxisKind = "linear"
    names: tuple[str, ...] = ()

    def title(self, scale: Scale) -> str:
        """The axis' name as it is drawn, with its scale if that is not linear: `step, log`."""
        if self.scale == "linear":
            return self.name
        note = "log" if isinstance(scale, LogScale) else "linear: nothing above 0"
        return ", ".join(filter(None, [self.name, note]))


class YAxis(Struct, frozen=True):
    """The value axis.

    Attributes:
        kind: a logarithmic one without a value above 0 is drawn linear.
        low: the lower end, None to follow the curves in round steps.
        high: the upper end, None to follow the curves in round steps.
        label: the text of a value; None for a short number.
        unit: the ticks of a linear axis are at round multiples of it, such as 2³⁰ for bytes.
    """

    kind: AxisKind = "linear"
    low: float | None = None
    high: float | None = None
    label: Callable[[float], str] | None = msgspec.field(default=None)
    unit: float = 1.0


class Chart(Struct, frozen=True):
    """What a chart shows, on the screen or in a file. All texts must be harmless."""

    curves: Sequence[Curve]
    title: str = ""
    x_axis: XAxis = msgspec.field(default_factory=XAxis)
    y_axis: YAxis = msgspec.field(default_factory=YAxis)
    markers: Sequence[Marker] = ()

    @property
    def bins(self) -> list[Bin]:
        """The bins of all curves."""
        return [one_bin for curve in self.curves for one_bin in curve.bins]
