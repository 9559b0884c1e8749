"""Read runs, metrics and GPUs of a home, and log metrics of a run: gputui help python."""

from typing import TYPE_CHECKING, Any

from gputui.version import VERSION

if TYPE_CHECKING:
    from gputui.core.training_log import log
    from gputui.store.api import AttemptRecord, GpuPoint, MetricPoint, RunRecord, Table, gpus, metrics, run, runs
    from gputui.store.database import StoreError
    from gputui.store.runs import RunLookupError

__all__ = [
    "AttemptRecord",
    "GpuPoint",
    "MetricPoint",
    "RunLookupError",
    "RunRecord",
    "StoreError",
    "Table",
    "__version__",
    "gpus",
    "log",
    "metrics",
    "run",
    "runs",
]  # fmt: skip


__version__ = VERSION


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """A name of the API, imported when it is used: a training script needs only `log`."""
    if name not in __all__:
        raise AttributeError(f"module 'gputui' has no attribute {name!r}")
    if name == "log":
        from gputui.core import training_log

        return training_log.log
    from gputui.store import api

    return getattr(api, name)
