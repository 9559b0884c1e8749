"""Which charts a run's page has, in what order, and where each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gputui.charts.safe_text import clean
from gputui.curves.metric_names import is_set
from gputui.curves.model import HardwareField
from gputui.curves.names import NameFilter, filter_names
from gputui.tui.layout.chart_settings import ChartSettings, Layout

LEAST_WIDTH, LEAST_HEIGHT = 34, 6
"""A chart smaller than this says little."""

MOST_COLUMNS = 3
FULL_HEIGHT = 10
"""From this height on a chart has room for the words below its markers."""

LOSS = "loss"
LEADING = (LOSS, "val/loss", "val_loss", "eval_loss")
THROUGHPUT = ("samples_per_s", "tokens_per_s", "images_per_s", "steps_per_s")
USUAL = (*LEADING, *THROUGHPUT, "lr", "grad_norm")
"""What training scripts tell most often, the most telling first; asked for before a run's names are known."""

_FIRST = (*LEADING, *THROUGHPUT, "gpu/utilization", "lr", "grad_norm")
_OF_EVENTS = frozenset({"seconds", "blocked_seconds", "bytes"})
"""What lines about events say beside, such as how long a checkpoint took: rarely looked at."""

_TITLES = {"lr": "learning rate", "grad_norm": "gradient norm"}
HARDWARE: dict[str, tuple[HardwareField, str]] = {
    "gpu/utilization": ("utilization", "GPU util %"),
    "gpu/power": ("power", "GPU power W"),
    "gpu/temperature": ("temperature", "GPU °C"),
    "gpu/memory": ("memory", "GPU memory GiB"),
    "gpu/sm_clock": ("sm_clock", "SM clock MHz"),
    "host/cpu": ("host_cpu", "host CPU %"),
    "host/memory": ("host_memory", "host memory GiB"),
}
"""Charts of the hardware, by the names that filters and pins know."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. ``key`` is the metric's name or one of `HARDWARE`; ``colour`` stays with it wherever it is."""

    key: str
    title: str
    colour: int
    field: HardwareField | None = None
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Panels:
    """The charts that there are to see, of how many, and what is wrong with the filter."""

    shown: tuple[Panel, ...]
    count: int
    problem: str | None = None


class PanelPlace(NamedTuple):
    """The place of a chart, in cells."""

    left: int
    top: int
    width: int
    height: int


def panels(names: Sequence[str], settings: ChartSettings, *, has_gpus: bool) -> Panels:
    """Pinned charts first, then what matters most for any training, then the run's own metrics, then the hardware;
    totals and counters last."""
    hardware = [key for key in HARDWARE if has_gpus or key.startswith("host/")]
    keys = by_interest([*names, *hardware])
    every = {
        key: Panel(key, _title(key), number % 4, HARDWARE[key][0] if key in HARDWARE else None, key in settings.pins)
        for number, key in enumerate(keys)
    }
    found: NameFilter = filter_names(keys, settings.filter_text)
    pinned = [pin for pin in settings.pins if pin in every]
    chosen = [*pinned, *(key for key in found.names if key not in pinned)]
    return Panels(tuple(every[key] for key in chosen), len(keys), found.problem)


def by_interest(keys: Sequence[str]) -> list[str]:
    """Names of metrics and of `HARDWARE`, what matters most for any training first, totals and counters last."""
    known = dict.fromkeys(keys)
    first = [key for key in _FIRST if key in known]
    rest = [key for key in known if key not in first]
    return [
        *first,
        *(key for key in rest if key not in HARDWARE and not is_set(key) and key not in _OF_EVENTS),
        *(key for key in rest if key in HARDWARE),
        *(key for key in rest if key in _OF_EVENTS),
        *(key for key in rest if key not in HARDWARE and is_set(key)),
    ]


def _title(key: str) -> str:
    if key in HARDWARE:
        return HARDWARE[key][1]
    return _TITLES.get(key, clean(key).replace("_per_s", "/s").replace("_", " "))


def places(count: int, width: int, height: int, layout: Layout) -> list[PanelPlace]:
    """The places of the charts of one screenful, at most ``count``, the first above all others at full width."""
    if count < 1 or height < 3 or width < 12:
        return []
    rows = max(1, height // LEAST_HEIGHT)
    if layout == "one" or count == 1 or rows == 1:
        return [PanelPlace(0, 0, width, height)]
    if layout == "two":
        half = height // 2
        return [PanelPlace(0, 0, width, height - half), PanelPlace(0, height - half, width, half)]
    columns = max(1, min(MOST_COLUMNS, (width + 1) // (LEAST_WIDTH + 1)))
    below = min(rows - (2 if rows >= 4 else 1), -(-(count - 1) // columns))
    columns = min(columns, -(-(count - 1) // below))
    # The first chart is worth twice the height of another one, where there is room.
    unit = max(LEAST_HEIGHT, min(height // (below + 2), height // 3))
    first = height - below * unit
    found = [PanelPlace(0, 0, width, first)]
    for number in range(min(count - 1, below * columns)):
        row, column = divmod(number, columns)
        in_row = min(columns, count - 1 - row * columns)
        left = column * (width + 1) // in_row
        right = (column + 1) * (width + 1) // in_row - 1
        found.append(PanelPlace(left, first + row * unit, right - left, unit))
    return found
