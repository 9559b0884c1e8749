"""What takes the disk of a home, and which command frees it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Literal, NamedTuple

from gputui.core.config import Workspace
from gputui.core.units import bytes_text
from gputui.runs.checks import CheckResult
from gputui.runs.disk_use import sized_entries
from gputui.store.database import StoreError, open_reader

SECONDS = 5.0  # a home with millions of files is measured in part rather than waited for
LARGEST_RUNS = 5  # those that are worth removing

Part = Literal["checkpoints", "logs", "exports", "run files", "database", "removed runs", "the rest"]

_FREED_BY: dict[Part, str] = {
    "checkpoints": "gputui rm --older 30d --dry-run lists what to remove",
    "logs": "gputui rm removes a run's; of one above 2 GiB the middle is dropped",
    "exports": "charts and reports; delete what you do not need",
    "run files": "gputui rm removes a run's",
    "database": "record.yaml bounds the samples (size:), gputui rm deletes a run's metrics",
    "removed runs": "the agent deletes them; gputui agent start, if none runs",
    "the rest": "files of studies and of the agent",
}


class HomeUse(NamedTuple):
    """The bytes of a home's parts and of its runs; at least so many, unless ``is_whole``."""

    parts: Counter[Part]
    runs: Counter[str]
    is_whole: bool


def check_disk_use(workspace: Workspace, seconds: float = SECONDS) -> list[CheckResult]:
    """Tell what takes the disk, the largest part first, as far as it can be read within ``seconds``."""
    if not workspace.state.is_dir():
        return [CheckResult("disk use", "skip", f"there is no {workspace.state} yet")]
    usage = measure(workspace, seconds)
    may_free = "" if os.access(workspace.state, os.W_OK) else "only its owner can free it: "
    least = "" if usage.is_whole else "at least "
    results = [CheckResult("disk use", "pass", f"{least}{bytes_text(usage.parts.total())} in {workspace.state}")]
    for part, size_bytes in usage.parts.most_common():
        if size_bytes:
            results.append(
                CheckResult(f"disk: {part}", "pass", f"{least}{bytes_text(size_bytes)}; {may_free}{_FREED_BY[part]}")
            )
    if usage.runs:
        largest = ", ".join(f"{run_id} {bytes_text(size)}" for run_id, size in usage.runs.most_common(LARGEST_RUNS))
        results.append(CheckResult("disk: largest runs", "pass", largest))
    return results


def measure(workspace: Workspace, seconds: float = SECONDS) -> HomeUse:
    """Read the sizes of all files of a home, until ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    parts = Counter[Part]()
    runs = Counter[str]()
    checkpoints = _checkpoints(workspace)
    try:
        for path, size_bytes in sized_entries(workspace.state):
            names = path.removeprefix(f"{workspace.state}/").split("/")
            parts[_part(names, path, checkpoints)] += size_bytes
            if names[0] == "runs" and len(names) > 2:
                runs[names[1]] += size_bytes
            if time.monotonic() > deadline:
                return HomeUse(parts, runs, is_whole=False)
    except OSError:
        return HomeUse(parts, runs, is_whole=False)
    return HomeUse(parts, runs, is_whole=True)


def _checkpoints(workspace: Workspace) -> Collection[str]:
    """The places of all checkpoints in the ledgers; none if the database cannot be read, which another check tells."""
    with suppress(StoreError, sqlite3.Error), closing(open_reader(workspace.database)) as connection:
        return {path for (path,) in connection.execute("SELECT path FROM checkpoints WHERE gone_at IS NULL")}
    return set()


def _part(names: Sequence[str], path: str, checkpoints: Collection[str]) -> Part:
    """The part that a file belongs to, by the ``names`` of its path below the state directory."""
    if names[0] == "removed" and len(names) > 1:
        return "removed runs"
    if names[0].startswith("gputui.db"):
        return "database"
    if names[0].startswith("agent.log"):
        return "logs"
    if names[0] != "runs":
        return "the rest"
    if any(place in checkpoints for place in _places(path, len(names) - 2)):
        return "checkpoints"
    if names[2:3] == ["charts"]:
        return "exports"
    is_log = names[2:3] == ["attempts"] and path.endswith(".log")
    if is_log:
        return "logs"
    return "run files"


def _places(path: str, most: int) -> Iterator[str]:
    """A file and the folders around it: a checkpoint may be a folder."""
    for _ in range(most):
        yield path
        path = path.rpartition("/")[0]
