"""The checkpoint from which an attempt resumes where only its target sees them. Standard library
only, for any Python from 3.9 on: part of remote.pyz.

`runs.checkpoint_formats` judges on both sides whether a checkpoint is whole. Which attempt wrote it
is told by the ledger where the agent sees the folder, and here by file times. Read first: `resume_plan`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gputui.runs.checkpoint_files import list_checkpoints
from gputui.runs.checkpoint_formats import validate
from gputui.runs.shim_records import read_record

NEWEST_CHECKPOINT = "{newest checkpoint}"
# A file server may show or stamp the last files of an attempt this long after its end.
AFTER_END_SECONDS = 5.0

Period = tuple[float, float]
"""UTC seconds by the clock of these files."""


class WritePeriods(NamedTuple):
    """The periods in which files could be written to a checkpoint folder.

    Attributes:
        lineage: by the attempts of the lineage.
        others: by other runs of this user.
        failures: how many attempts resumed from a checkpoint and failed before a step, by its path.
    """

    lineage: list[Period]
    others: list[Period]
    failures: Counter[str]

    def are_own(self, at: float) -> bool:
        """Return whether an attempt of the lineage could write at a time, and no other run."""
        is_of_lineage = any(begun <= at <= end for begun, end in self.lineage)
        return is_of_lineage and not any(begun <= at <= end for begun, end in self.others)


def resume_plan(plan: dict[str, Any], folder: Path, lineage: list[dict[str, Any]]) -> dict[str, Any]:
    """Resume the plan of the attempt in ``folder`` from the newest checkpoint of its lineage, else from the one that a
    person chose.

    Args:
        lineage: its attempts, each with ``attempt`` (a number), ``until`` (checkpoints written later are excluded; null
            for no limit), ``failed`` (before a step) and, in the first, ``base``, the checkpoint that a person chose.

    Returns:
        The plan as it was if there is no checkpoint.
    """
    again = plan.get("resume")
    if not again:
        return plan
    checkpoint = newest_checkpoint(Path(again["folder"]), again["pattern"], read_periods(folder, lineage))
    checkpoint = checkpoint or lineage[0].get("base")
    if checkpoint is None:
        return plan
    argv = [word.replace(NEWEST_CHECKPOINT, checkpoint) for word in again["argv"]]
    env = {name: value.replace(NEWEST_CHECKPOINT, checkpoint) for name, value in again["env"].items()}
    return {**plan, "argv": argv, "env": env, "resume_from": checkpoint}


def newest_checkpoint(folder: Path, pattern: str, periods: WritePeriods) -> str | None:
    """The newest whole checkpoint of a lineage, else the newest of a format that cannot be checked. Raises OSError.

    Those from which attempts failed to begin come after all others.
    """
    paths = [file.path for file in list_checkpoints(folder, pattern) if periods.are_own(file.modified_ns / 1e9)]
    unknown: str | None = None
    for path in sorted(paths, key=lambda path: periods.failures[path]):
        if unknown is not None and periods.failures[path] > periods.failures[unknown]:
            break
        info = validate(Path(path))
        if info.valid and not is_partly_rewritten(Path(path)):
            return path
        if info.is_unknown:
            unknown = unknown or path
    return unknown


def is_partly_rewritten(path: Path) -> bool:
    """Return whether a distributed checkpoint has a shard that is newer than its index.

    Each save writes the index last: an interrupted save over an earlier checkpoint leaves files of both.
    """
    return any(
        shard.stat().st_mtime_ns > shard.with_name(".metadata").stat().st_mtime_ns for shard in path.rglob("*.distcp")
    )


def read_periods(folder: Path, lineage: list[dict[str, Any]]) -> WritePeriods:
    """Read the periods in which the attempts of a lineage and other runs could write; ``folder`` is
    that of any attempt."""
    periods = WritePeriods([], periods_of_others(folder), Counter())
    for attempt in lineage:
        attempt_folder = folder.parents[1] / str(attempt["attempt"]) / folder.name
        period = period_of(attempt_folder)
        if period is None:
            continue
        began_at, ended_at = period
        if attempt["until"] is not None:
            ended_at = min(ended_at, float(attempt["until"]))
        periods.lineage.append((began_at, ended_at))
        base = (read_record(attempt_folder / "attempt.json") or {}).get("resume_from")
        if attempt["failed"] and base is not None:
            periods.failures[base] += 1
    return periods


def period_of(folder: Path) -> Period | None:
    """The period in which the attempt in a folder could write, None if it never began."""
    try:
        begun_at = (folder / "claim").stat().st_mtime
    except OSError:
        return None
    ended_at = (read_record(folder / "exit.json") or {}).get("ended_at") or time.time()
    return begun_at, float(ended_at) + AFTER_END_SECONDS


def periods_of_others(folder: Path) -> list[Period]:
    """The periods in which other runs could write to the checkpoint folder of the attempt in
    ``folder``. Runs are in …/<tag>/<run>, or in one folder on a shared file system."""
    checkpoints = shared_checkpoints(folder)
    run_dir = folder.parents[2]
    if checkpoints is None:
        return []
    others = {*run_dir.parent.glob("*"), *run_dir.parents[1].glob("*/*")} - {run_dir}
    attempts = (path for other_dir in others for path in other_dir.glob(f"attempts/*/{folder.name}"))
    periods = (period_of(path) for path in attempts if shared_checkpoints(path) == checkpoints)
    return [period for period in periods if period is not None]


def shared_checkpoints(folder: Path) -> str | None:
    """The real checkpoint folder of the attempt in ``folder``; None if it is the run's own."""
    checkpoints = (read_record(folder / "attempt.json") or {}).get("checkpoints")
    if checkpoints is None or Path(checkpoints).is_relative_to(folder.parents[2]):
        return None
    return str(os.path.realpath(checkpoints))
