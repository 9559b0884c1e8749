"""The parts of a chart: curves, markers, axes."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from gputui.metrics.draw.axes import AxisKind, LogScale, Scale
from gputui.metrics.draw.envelope import Bin

XKind = Literal["number", "count", "time"]
"""The quantity of an x axis: numbers, whole numbers, or seconds."""

Span = tuple[str, str]
"""A piece of text and the key of its style."""

Line = list[Span]
"""One line of text: pieces with the keys of their styles."""


class Curve(Struct, frozen=True):
    """One series of a chart, with the key of its style. ``label`` and ``value`` are in the legend,
    ``end`` is right of the newest value, ``shape`` a sign at the line's end and in the legend. A
    shadow is drawn whole, and only in cells that no other curve goes through; of others, what varies
    within a bin as much as usual is a line. A strong line is two dots thick."""

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
    """The horizontal axis; without a value above 0, a logarithmic one is drawn linear. Ends that
    are None follow the curves; ``names`` are labels at 0, 1, 2 … of characters one cell wide."""

    name: str = ""
    start: float | None = None
    end: float | None = None
    kind: XKind = "number"
    scale: AxisKind = "linear"
    names: tuple[str, ...] = ()

    def words(self, scale: Scale) -> str:
        """The axis' name as it is drawn, with its scale if that is not linear."""
        if self.scale == "linear":
            return self.name
        note = "log" if isinstance(scale, LogScale) else "linear: nothing above 0"
        return ", ".join(filter(None, [self.name, note]))


class YAxis(Struct, frozen=True):
    """The value axis; without a value above 0, a logarithmic one is drawn linear. Ends that are
    None follow the curves in round steps; ticks of a linear one are at round multiples of ``unit``,
    2³⁰ for bytes."""

    kind: AxisKind = "linear"
    low: float | None = None
    high: float | None = None
    label: Callable[[float], str] | None = msgspec.field(default=None)
    unit: float = 1.0
