"""Metrics as people read them: their order, titles and values."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import clean
from gputui.core.units import gibibytes, metric_value
from gputui.metrics.curves.model import HardwareField
from gputui.metrics.curves.names import is_set
from gputui.metrics.progress import THROUGHPUT
from gputui.store.gpu_use import PEAK_METRIC
from gputui.store.metrics.roles import LOSS, NO_ROLES, VALIDATION_LOSS, MetricRoles, training_loss, validation_loss
from gputui.store.metrics.stored_lines import is_of_events

USUAL = (LOSS, VALIDATION_LOSS, "train_loss", "train/loss", "val_loss", "eval_loss", *THROUGHPUT, "lr", "grad_norm")
"""The most common metrics, the most important first; requested before a run's names are known."""

_FIRST = ("val/accuracy", "eval_accuracy", *THROUGHPUT, "gpu/utilization", "lr", "grad_norm")
_TITLES = {
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "step_time": "step time s",
    "data_time": "data time s",
    "comm_time": "communication time s",
    PEAK_METRIC: "GPU memory peak",
}
HARDWARE: dict[str, tuple[HardwareField, str]] = {
    "gpu/utilization": ("utilization", "GPU util %"),
    "gpu/power": ("power", "GPU power W"),
    "gpu/temperature": ("temperature", "GPU °C"),
    "gpu/memory": ("memory", "GPU memory GiB"),
    "gpu/sm_clock": ("sm_clock", "SM clock MHz"),
    "host/cpu": ("host_cpu", "host CPU %"),
    "host/memory": ("host_memory", "host memory GiB"),
}
"""Charts of the hardware by their names in filters and pins."""


def by_interest(keys: Sequence[str], roles: MetricRoles = NO_ROLES) -> list[str]:
    """Sort names of metrics and of `HARDWARE`: the losses, by ``roles`` or by their names, and the most important for
    any training, other metrics, hardware, values of events, and at last totals and counters."""
    losses = (roles.loss or training_loss(keys), roles.validation or validation_loss(keys))
    first = (*losses, roles.best, *_FIRST)

    def weight(key: str) -> int:
        if key in first:
            return first.index(key)
        if key in HARDWARE:
            return len(first) + 1
        if is_of_events(key):
            return len(first) + 2
        if is_set(key):
            return len(first) + 3
        return len(first)

    return sorted(dict.fromkeys(keys), key=weight)


def metric_title(name: str) -> str:
    """The title of a metric: ``samples/s`` for ``samples_per_s``."""
    return _TITLES.get(name, clean(name).replace("_per_s", "/s").replace("_", " "))


def metric_heading(name: str) -> str:
    """The title of a metric above values of `metric_words`, with their unit where that is another."""
    if name == PEAK_METRIC:
        return f"{metric_title(name)} GiB"
    return metric_title(name)


def metric_words(name: str, value: float | None) -> str:
    """The value of a metric; bytes in GiB."""
    if name == PEAK_METRIC:
        return gibibytes(value)
    return metric_value(value)
