"""Detects from a run's files that it trains without metrics, and that its script makes a process
group."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gputui.core.config import open_regular
from gputui.metrics.formats import PRINTED_STREAMS
from gputui.recovery.checkpoints import look_in
from gputui.runs.command import checkpoint_directory, in_run
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.logs import node_folder
from gputui.runs.spec import RunSpec

PRINTED_LINES = 200
_READ_BYTES = 256 << 10
_GROUP = re.compile(
    rb"^[^#\n]*\b(?:init_process_group|init_device_mesh|DistributedDataParallel|FullyShardedDataParallel|fully_shard)\b",
    re.MULTILINE,
)


class TrainingTrace(Struct, frozen=True):
    """Traces of training: the output files of the attempt's first rank and its checkpoints.
    ``where`` describes the sources of metrics in the profile. ``since`` (unix seconds) is the
    attempt's begin."""

    outputs: tuple[Path, ...]
    checkpoints: Path | None
    pattern: str
    since: float
    where: str


def trace_of(spec: RunSpec, run_dir: Path, attempt: int, since: float) -> TrainingTrace:
    folder = node_folder(run_dir / "attempts" / str(attempt))
    outputs = LAUNCHERS[spec.launcher].log_files(folder, spec.nproc)
    printed = next((source.kind for source in spec.metrics if source.kind in PRINTED_STREAMS), None)
    files = [str(in_run(source.path, spec, run_dir)) for source in spec.metrics if source.path is not None]
    unread = [f"no metrics line was read from {' or '.join(files)}"] if files else []
    if printed is not None:
        unread.append(f"nothing in its {printed} matches the patterns of its profile")
    pattern = "" if spec.checkpoints is None else spec.checkpoints.pattern
    return TrainingTrace(tuple(outputs), checkpoint_directory(spec, run_dir), pattern, since, " and ".join(unread))


def missing_metrics(trace: TrainingTrace) -> str | None:
    """A sentence once the attempt has saved a checkpoint or printed PRINTED_LINES lines; None
    before. Call it in a job, because folders may be slow, and only while there is no metrics
    line."""
    if trace.checkpoints is not None:
        try:
            newest = next(iter(look_in(trace.checkpoints, trace.pattern, most=1)), None)
        except OSError:
            newest = None
        if newest is not None and newest.modified_ns / 1e9 >= trace.since:
            return f"it has saved {Path(newest.path).name}, but {trace.where}"
    if any(count >= PRINTED_LINES for count in map(_lines, _readable(trace.outputs))):
        return f"it has printed {PRINTED_LINES} lines, but {trace.where}"
    return None


def makes_group(spec: RunSpec) -> bool:
    """Whether the text of the run's script makes a process group or wraps a model in one. Call it
    in a job."""
    scripts = [Path(spec.workdir, word) for word in spec.program if word.endswith(".py")]
    return any(_GROUP.search(text) for text in _readable(scripts[:1]))


def _readable(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        try:
            with open_regular(path) as file:
                yield file.read(_READ_BYTES)
        except OSError:
            continue


def _lines(content: bytes) -> int:
    """Number of lines; updates of a progress bar, which end with a carriage return, count too."""
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")
