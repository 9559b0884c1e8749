"""Create the sink of a format and target. Imports its library only then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from gputui.reports.export.formats import FORMATS, Format, missing_package
from gputui.reports.export.sink import ExportError, Sink
from gputui.reports.export.subject import Subject

_SQLITE = "sqlite:///"


def make_sink(name: Format, subject: Subject, target: str, key: str | None = None) -> Sink:
    """A sink for a run and an absolute target. Raises ExportError if its library is missing."""
    missing = missing_package(name, target)
    if missing is not None:
        raise ExportError(missing)
    module, _, made = FORMATS[name].sink.partition(":")
    make: Callable[[Subject, str, str], Sink] = getattr(import_module(f"{__package__}.{module}"), made)
    return make(
        subject, target, key or key_of(name, subject.run.run_id, subject.run.created_at, target, subject.wanted)
    )


def key_of(name: Format, run_id: str, created_at: float, target: str, metrics: Sequence[str] = ()) -> str:
    """A key for the export of a run's metrics to an absolute target, the same in every process."""
    return _digest(run_id, repr(created_at), name, target, *metrics)


def memory_key_of(name: Format, run_id: str, target: str, metrics: Sequence[str] = ()) -> str:
    """A key for one sink of a run within the run's folder. It does not depend on the database, so that a run whose
    database was lost finds the progress of its sinks."""
    return _digest(run_id, name, target, *metrics)


def absolute_target(name: Format, target: str, base: Path) -> str:
    """A target relative to ``base``, made absolute."""
    if not FORMATS[name].is_address:
        return str(base / Path(target).expanduser())
    if target.startswith(_SQLITE) and not target.startswith(f"{_SQLITE}/"):
        return f"{_SQLITE}{base / target.removeprefix(_SQLITE)}"
    return target


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:16]
