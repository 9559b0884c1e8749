"""Copy the scalars in a folder of TensorBoard or W&B into one file of JSON lines, with a line for each step, in order.

``python -m gputui.metrics.tracker_copy KIND SOURCE OUTPUT`` runs as a separate process, because the files may be large
or damaged. The trackers' libraries are not used.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from gputui.core.config import open_regular
from gputui.metrics.trackers import TRACKERS, DamagedRecordError

EVENTS, OFFLINE = "events.out.tfevents.*", "run-*.wandb"


class TrackedRun(NamedTuple):
    """A run of another tracker: a folder of event files and subfolders, or one file of W&B."""

    kind: str
    name: str
    source: Path


def tracked_runs(folder: Path) -> list[TrackedRun]:
    """The runs in a folder. Each subfolder with event files is a run, unless all are parts of one run, such as training
    and validation. Raises OSError."""
    found = [TrackedRun("wandb", path.stem.removeprefix("run-"), path) for path in sorted(folder.rglob(OFFLINE))]
    heads = {path.relative_to(folder).parts[:-1][:1] for path in folder.rglob(EVENTS)}
    names = sorted(name for head in heads for name in head)
    if heads and (() in heads or all(name.lower().startswith(_PARTS) for name in names)):
        return [*found, TrackedRun("tensorboard", folder.resolve().name, folder)]
    return [*found, *(TrackedRun("tensorboard", name, folder / name) for name in names)]


_PARTS = ("train", "val", "eval", "test")


def steps_of(kind: str, source: Path) -> dict[int, dict[str, Any]]:
    """The values of each step by name, with ``time`` if known. Values of a subfolder have its name as a prefix. A
    damaged file is read up to the damage. Raises OSError."""
    steps: dict[int, dict[str, Any]] = {}
    for path in [source] if kind == "wandb" else sorted(source.rglob(EVENTS)):
        relative = path.parent.relative_to(source) if kind == "tensorboard" else Path()
        prefix = "" if relative == Path() else f"{relative.as_posix()}/"
        for values in _records(path, kind):
            step, time = values.pop("step", None), values.pop("time", None)
            if isinstance(step, int):
                line = steps.setdefault(step, {"step": step})
                line.update({prefix + name: value for name, value in values.items()})
                if time is not None:
                    line.setdefault("time", time)
    return steps


def _records(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    _, frames, scalars = TRACKERS[kind]
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                for frame in frames(cast("bytes", content), 0):
                    values = None if frame.content is None else scalars(frame.content)
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
    return 0 if steps else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
