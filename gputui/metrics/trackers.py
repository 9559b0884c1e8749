"""The trackers whose files are read without their libraries.

``python -m gputui.metrics.trackers KIND SOURCE OUTPUT`` copies the scalars of another tracker's run
into a file of JSON lines, as a process of its own: the files may be large or damaged.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from gputui.core.files import open_regular
from gputui.metrics.record_format import DamagedRecordError, RecordFormat
from gputui.metrics.tensorboard import EVENT_FILES, EventRecords, subfolder_of_run
from gputui.metrics.wandb import HistoryRecords

_PARTS = ("train", "val", "eval", "test")


class TrackedRun(NamedTuple):
    """A run of another tracker: a folder of event files and subfolders, or one file of W&B."""

    kind: str
    name: str
    source: Path


class Tracker:
    """A tracker: which files are its own, which runs they are of, and how one is read.

    Attributes:
        kind: The kind of the sources that it reads.
        pattern: The glob of its files below a profile's folder.
    """

    kind: str
    pattern: str

    def file_format(self, subfolder: str = "", learned: Any = None) -> RecordFormat:
        """The format of one file.

        Args:
            subfolder: As of `subfolder_of`.
            learned: What earlier readers have learned, see `LineFormat.learned`.
        """
        raise NotImplementedError

    def subfolder_of(self, file: Path, written: Collection[Path] | None) -> str:
        """The folder of a file below that of its run, where it is a part of the metrics' names; "" elsewhere. Of
        ``written`` files, those alone count. Raises OSError."""
        return ""

    def runs_in(self, folder: Path) -> list[TrackedRun]:
        """The runs in a folder. Raises OSError."""
        raise NotImplementedError

    def files_of(self, source: Path) -> Iterator[tuple[Path, str]]:
        """The files of a `TrackedRun`, with their subfolders. Raises OSError."""
        raise NotImplementedError


class _TensorBoard(Tracker):
    kind = "tensorboard"
    pattern = EVENT_FILES

    def file_format(self, subfolder: str = "", learned: Any = None) -> RecordFormat:
        return EventRecords(subfolder)

    def subfolder_of(self, file: Path, written: Collection[Path] | None) -> str:
        return subfolder_of_run(file.parent, written)

    def runs_in(self, folder: Path) -> list[TrackedRun]:
        """Each subfolder with event files is a run, unless all are parts of one run, such as training and
        validation."""
        folders = [file.relative_to(folder).parent for file in folder.rglob(self.pattern)]
        if not folders:
            return []
        names = sorted({path.parts[0] for path in folders if path.parts})
        has_own_file = any(not path.parts for path in folders)
        if has_own_file or all(name.lower().startswith(_PARTS) for name in names):
            return [TrackedRun(self.kind, folder.resolve().name, folder)]
        return [TrackedRun(self.kind, name, folder / name) for name in names]

    def files_of(self, source: Path) -> Iterator[tuple[Path, str]]:
        for path in sorted(source.rglob(self.pattern)):
            subfolder = ""
            if path.parent != source:
                subfolder = path.parent.relative_to(source).as_posix()
            yield path, subfolder


class _Wandb(Tracker):
    kind = "wandb"
    pattern = "offline-run-*/run-*.wandb"

    def file_format(self, subfolder: str = "", learned: Any = None) -> RecordFormat:
        return HistoryRecords(learned)

    def runs_in(self, folder: Path) -> list[TrackedRun]:
        files = sorted(folder.rglob(PurePath(self.pattern).name))
        return [TrackedRun(self.kind, file.stem.removeprefix("run-"), file) for file in files]

    def files_of(self, source: Path) -> Iterator[tuple[Path, str]]:
        yield source, ""


TRACKERS: dict[str, Tracker] = {tracker.kind: tracker for tracker in (_Wandb(), _TensorBoard())}
"""The trackers by kind of source."""


def tracked_runs(folder: Path) -> list[TrackedRun]:
    """The runs of all trackers in a folder. Raises OSError."""
    return [run for tracker in TRACKERS.values() for run in tracker.runs_in(folder)]


def steps_of(kind: str, source: Path) -> dict[int, dict[str, Any]]:
    """Read the values of each step of a `TrackedRun` by name, with ``time`` if known.

    Values of a subfolder have its name as a prefix. A damaged file is read up to the damage. Raises OSError.
    """
    steps: dict[int, dict[str, Any]] = {}
    tracker = TRACKERS[kind]
    for path, subfolder in tracker.files_of(source):
        for values in _scalars_of(path, tracker.file_format(subfolder)):
            step = values.pop("step", None)
            time = values.pop("time")
            if isinstance(step, int):
                line = steps.setdefault(step, {"step": step})
                line.update(values)
                if time is not None:
                    line.setdefault("time", time)
    return steps


def _scalars_of(path: Path, record_format: RecordFormat) -> Iterator[dict[str, Any]]:
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                for _, record in record_format.frames(cast("bytes", content), 0):
                    values = record_format.scalars(record)
                    if values is not None:
                        yield values
            except DamagedRecordError as error:
                sys.stderr.write(f"{path}: {error}; what comes behind is left out\n")


def main(kind: str, source: str, output: str) -> int:
    """Write the lines and print their number; returns 1 if there are none."""
    steps = steps_of(kind, Path(source))
    with Path(output).open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(steps[step]) + "\n" for step in sorted(steps))
    names = {name for line in steps.values() for name in line} - {"step", "time"}
    sys.stdout.write(f"{len(steps)} steps, {len(names)} metrics\n")
    if steps:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
