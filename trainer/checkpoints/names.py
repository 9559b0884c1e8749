"""Names of checkpoints' files, from steps, epochs and phases, and back.

::

    step_00000040.pt            in rotation: the newest few are kept
    step_00000040.pt.sha256     beside every checkpoint, in the format of sha256sum
    step_00000040.shards/       the ranks' shards of a sharded checkpoint
    phase_main/epoch_3.pt       the end of an epoch, never deleted
    best_model.pt               the best so far, with best_model.json for people

Names with a leading dot that end in ``.tmp`` are unfinished.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

STALE = ".stale"
TEMPORARY = ".tmp"

_STEP = re.compile(r"step_(\d{8,})\.pt")
_OURS = re.compile(r"(step_\d{8,}(_rank_\d+_of_\d+)?|epoch_\d+|best_model)\.(pt|shards|json)(\..*)?")


def step_file(directory: Path, step: int) -> Path:
    return directory / f"step_{step:08d}.pt"


def epoch_file(directory: Path, phase: str, epoch: int) -> Path:
    """Different phase names give different files, for any characters."""
    return directory / f"phase_{quote(phase or 'main', safe='')}" / f"epoch_{epoch}.pt"


def best_file(directory: Path) -> Path:
    return directory / "best_model.pt"


def hash_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def temporary_file(path: Path) -> Path:
    """The name of `path` while it is being written."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def shards_folder(path: Path) -> Path:
    """The folder with the shards of a sharded checkpoint."""
    return path.with_suffix(".shards")


def shard_file(step: int, rank: int, ranks: int) -> str:
    """The name of a rank's shard. It has the step, so that another state of the same name never overwrites it."""
    return f"step_{step:08d}_rank_{rank}_of_{ranks}.pt"


def step_of(path: Path) -> int | None:
    """The step in a file's name; None if it has none."""
    match = _STEP.match(path.name)
    return int(match[1]) if match else None


def is_step_file(path: Path) -> bool:
    return _STEP.fullmatch(path.name) is not None


def is_temporary(path: Path) -> bool:
    """Whether this is the name of an unfinished file of a checkpoint."""
    name = path.name
    return name.startswith(".") and name.endswith(TEMPORARY) and _OURS.fullmatch(name[1:]) is not None


def is_hash_file(path: Path) -> bool:
    return path.suffix == ".sha256" and _OURS.fullmatch(path.name) is not None


def is_shards_folder(path: Path) -> bool:
    return path.name.endswith(".shards") and _OURS.fullmatch(path.name) is not None
