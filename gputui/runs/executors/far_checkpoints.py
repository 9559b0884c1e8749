"""The checkpoint from which an attempt resumes where only its target sees them. Standard library
only, for any Python from 3.9 on: part of far.pyz.

Read first: `newest_checkpoint`, then `Course`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

from gputui.runs.shim import read_record

CHUNK_BYTES = 1 << 20
NEWEST_CHECKPOINT = "{newest checkpoint}"
# A file server may show or stamp the last files of an attempt this long after its end.
AFTER_END_SECONDS = 5.0
# Files that each save of a checkpoint folder writes, as in gputui/recovery/checkpoints/files.py.
SAVED_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz", ".distcp", ".metadata", ".pkl", ".npz", ".npy")


def is_whole(path: Path) -> bool:
    """Check that a file is complete, by its ``.sha256`` file, else by its archive's checksums. A
    file that is not an archive need only be non-empty."""
    try:
        beside = path.with_name(path.name + ".sha256")
        if beside.is_file():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                    digest.update(chunk)
            return beside.read_text("utf-8").split()[0].lower() == digest.hexdigest()
        with path.open("rb") as file:
            head = file.read(2)
        if head == b"PK" or path.suffix in (".pt", ".pth", ".ckpt"):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        return bool(head)
    # A damaged archive: also an unknown compression, an encrypted member, offsets outside of the file.
    except (OSError, ValueError, IndexError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        return False


def is_saved_whole(folder: Path) -> bool:
    """Check that the index of each distributed checkpoint in a folder, which is written last, is
    newer than its shards. An interrupted save over an earlier checkpoint leaves files of both."""
    for place in {shard.parent for shard in folder.rglob("*.distcp")}:
        try:
            written_at = (place / ".metadata").stat().st_mtime_ns
            if any(shard.stat().st_mtime_ns > written_at for shard in place.glob("*.distcp")):
                return False
        except OSError:
            return False
    return True


def written_at(path: Path) -> float:
    """The time at which a checkpoint was written (UTC seconds): of a folder, that of the newest of
    the files that each save writes. Raises OSError."""
    saved = [each for each in path.rglob("*") if each.name.endswith(SAVED_SUFFIXES)] if path.is_dir() else []
    return max((each.stat().st_mtime for each in saved), default=path.stat().st_mtime)


def span_of(folder: Path) -> tuple[float, float] | None:
    """The time span in which the attempt in a folder could write (UTC seconds), None if it never
    began."""
    try:
        begun_at = (folder / "claim").stat().st_mtime
    except OSError:
        return None
    ended_at = (read_record(folder / "exit.json") or {}).get("ended_at") or time.time()
    return begun_at, float(ended_at) + AFTER_END_SECONDS


def spans_of_others(folder: Path) -> list[tuple[float, float]]:
    """The time spans in which other runs could write to the checkpoint folder of the attempt in
    ``folder``. Runs are in …/<tag>/<run>, or in one folder on a shared file system."""
    mine = checkpoints_of(folder)
    run_dir = folder.parents[2]
    found = []
    for other in {*run_dir.parent.glob("*"), *run_dir.parents[1].glob("*/*")} if mine is not None else ():
        if other != run_dir:
            for attempt in other.glob(f"attempts/*/{folder.name}"):
                span = span_of(attempt)
                if span is not None and checkpoints_of(attempt) == mine:
                    found.append(span)
    return found


def checkpoints_of(folder: Path) -> str | None:
    """The checkpoint folder of the attempt in ``folder``, with links resolved; None if it is the
    run's own."""
    found = (read_record(folder / "attempt.json") or {}).get("checkpoints")
    if found is None or Path(found).is_relative_to(folder.parents[2]):
        return None
    return str(os.path.realpath(found))


def is_within(at: float, spans: list[tuple[float, float]]) -> bool:
    return any(begun_at <= at <= until for begun_at, until in spans)


class Course:
    """The attempts of a course on this target: when each could write (UTC seconds, by the clock of
    these files), and how many resumed from a checkpoint and failed before a step.

    ``attempts`` have ``attempt`` (a number), ``until`` (checkpoints written later are excluded;
    None for no limit), ``failed`` and, in the first, ``base``, the checkpoint that a person chose;
    ``folder`` is that of any attempt. Checkpoints written while another run of this user had the
    same folder may be that run's, and are excluded.
    """

    def __init__(self, folder: Path, attempts: list[dict[str, Any]]) -> None:
        self.spans: list[tuple[float, float]] = []
        self.failed: dict[str, int] = {}
        self.others = spans_of_others(folder)
        self.base: str | None = attempts[0].get("base") if attempts else None
        for one in attempts:
            there = folder.parents[1] / str(one["attempt"]) / folder.name
            span = span_of(there)
            if span is None:
                continue
            until = float("inf") if one["until"] is None else float(one["until"])
            self.spans.append((span[0], min(span[1], until)))
            base = (read_record(there / "attempt.json") or {}).get("resume_from")
            if one["failed"] and base is not None:
                self.failed[base] = self.failed.get(base, 0) + 1

    def order(self, path: Path, written_at: float) -> tuple[int, float] | None:
        """The sort key of a checkpoint, the best last; None for one that the course did not write."""
        if not is_within(written_at, self.spans) or is_within(written_at, self.others):
            return None
        return (-self.failed.get(str(path), 0), written_at)


def newest_checkpoint(folder: Path, pattern: str, course: Course) -> str | None:
    """The newest complete checkpoint of a course, a file or a folder of files."""
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            place = course.order(path, written_at(path))
            if path.suffix not in (".tmp", ".sha256") and place is not None:
                found.append((place, path))
    for _, path in sorted(found, reverse=True):
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        if files and is_saved_whole(path) and all(is_whole(each) for each in files if each.suffix != ".sha256"):
            return str(path)
    return None


def resumed(plan: dict[str, Any], course: Course) -> dict[str, Any]:
    """The plan, resumed from the newest checkpoint of a course; unchanged if there is none."""
    again = plan.get("resume")
    if not again:
        return plan
    found = newest_checkpoint(Path(again["folder"]), again["pattern"], course) or course.base
    if found is None:
        return plan
    argv = [word.replace(NEWEST_CHECKPOINT, found) for word in again["argv"]]
    env = {name: value.replace(NEWEST_CHECKPOINT, found) for name, value in again["env"].items()}
    return {**plan, "argv": argv, "env": env, "resume_from": found}
