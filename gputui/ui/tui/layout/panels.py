"""The choice, order and rectangles of a page's charts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from gputui.metrics.curves.model import HardwareField
from gputui.metrics.curves.names import filter_names, is_of_the_run
from gputui.store.gpu_use import PEAK_METRIC
from gputui.store.metrics.roles import NO_ROLES, MetricRoles
from gputui.ui.tui.layout.chart_settings import ChartView
from gputui.ui.tui.settings import Layout
from gputui.ui.views.metric_words import HARDWARE, by_interest, metric_heading

LEAST_WIDTH = 31
LEAST_HEIGHT = 6
"""Least size of a useful chart beside others."""

LEAST_NAMED_WIDTH = 56
"""Least width of a chart with names at the ends of its curves."""

MOST_COLUMNS = 3
FULL_HEIGHT = 10
"""Least height of a chart with words below its markers."""

# The room for a single chart; with less there is none.
_ROOM_WIDTH = 12
_ROOM_HEIGHT = 3


class Panel(Struct, frozen=True):
    """One chart.

    Attributes:
        key: the metric's name, or one of `HARDWARE`.
        colour: the number of its colour, which does not depend on where the chart is.
        field: what it shows of the hardware; None for a metric.
    """

    key: str
    title: str
    colour: int
    field: HardwareField | None = None
    is_pinned: bool = False

    @property
    def is_in_bytes(self) -> bool:
        """True if its values are bytes, which charts show in GiB."""
        if self.field is not None:
            return self.field in ("memory", "host_memory")
        return self.key == PEAK_METRIC


class ChosenPanels(Struct, frozen=True):
    """The charts that match the filter.

    Attributes:
        chosen: the charts in their order.
        count: how many there are in all.
        problem: what is wrong with the filter.
        names: the metrics that were chosen among.
        hardware: the keys of `HARDWARE` that were chosen among.
    """

    chosen: tuple[Panel, ...] = ()
    count: int = 0
    problem: str | None = None
    names: Sequence[str] = ()
    hardware: Sequence[str] = ()


class PanelRect(NamedTuple):
    """The cells of a chart on its page; ``x`` and ``y`` are those of its upper left corner."""

    x: int
    y: int
    width: int
    height: int


def choose_panels(
    names: Sequence[str], hardware: Sequence[str], view: ChartView, roles: MetricRoles = NO_ROLES
) -> ChosenPanels:
    """The charts in order: pinned ones, then those of `by_interest`.

    What the run is (`is_of_the_run`) has a chart only if it is pinned or matches a filter: the parameters tell it
    better than a curve of one point.

    Args:
        names: the metrics of the run.
        hardware: keys of `HARDWARE`.
        view: pins and filter.
        roles: which metrics are the losses.
    """
    keys = by_interest([*names, *hardware], roles)
    by_key: dict[str, Panel] = {}
    for number, key in enumerate(keys):
        field, title = HARDWARE.get(key, (None, metric_heading(key)))
        by_key[key] = Panel(key, title, number % 4, field, key in view.pins)
    matches = filter_names(keys, view.filter_text)
    is_filtered = bool(view.filter_text.strip())
    pinned = [pin for pin in view.pins if pin in by_key]
    others = [key for key in matches.names if key not in pinned and (is_filtered or not is_of_the_run(key))]
    chosen = tuple(by_key[key] for key in (*pinned, *others))
    count = len(keys) if is_filtered else len(chosen)
    return ChosenPanels(chosen, count, matches.problem, names, hardware)


def panel_rects(count: int, width: int, height: int, layout: Layout, least_width: int = LEAST_WIDTH) -> list[PanelRect]:
    """The rectangles of one screenful of at most ``count`` charts; the first is above the others, at full width."""
    if count < 1 or width < _ROOM_WIDTH or height < _ROOM_HEIGHT:
        return []
    is_single = layout == "one" or count == 1
    if is_single or height < 2 * LEAST_HEIGHT:
        return [PanelRect(0, 0, width, height)]
    if layout == "two":
        lower = height // 2
        return [PanelRect(0, 0, width, height - lower), PanelRect(0, height - lower, width, lower)]
    return _grid_below_first(count - 1, width, height, least_width)


def _grid_below_first(others: int, width: int, height: int, least_width: int) -> list[PanelRect]:
    """The rectangle of the first chart, and rows of equal height below it for as many of the ``others`` as fit."""
    # Charts side by side have an empty cell between them.
    most_across = max(1, min(MOST_COLUMNS, (width + 1) // (least_width + 1)))
    rows = height // LEAST_HEIGHT
    # The first chart gets twice the height of the others, if there is room.
    rows_of_first = 2 if rows >= 4 else 1
    down = min(rows - rows_of_first, ceil(others / most_across))
    across = min(most_across, ceil(others / down))
    row_height = max(LEAST_HEIGHT, min(height // (down + 2), height // 3))
    first_height = height - down * row_height
    rects = [PanelRect(0, 0, width, first_height)]
    for row in range(down):
        in_row = min(across, others - row * across)
        starts = [column * (width + 1) // in_row for column in range(in_row + 1)]
        for x, next_x in pairwise(starts):
            rects.append(PanelRect(x, first_height + row * row_height, next_x - 1 - x, row_height))
    return rects
