"""Choosing a checkpoint to resume from, reading it, and deleting those that are not needed any more.

Checkpoints of steps after the one that a run resumes from become stale, and are deleted once the new branch has valid
ones of the same step. Those of epochs and the best one are not in rotation, and never deleted here.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from trainer.checkpoints import files
from trainer.checkpoints.files import FORMAT, State
from trainer.checkpoints.state import assembled
from trainer.checkpoints.streams import load_file
from trainer.config import Settings
from trainer.config.schema import SHAPE_SETTINGS, flag
from trainer.errors import CheckpointError


def step_of(path: Path) -> int | None:
    """The step of a checkpoint in rotation, also a stale one; None of any other file."""
    match = re.fullmatch(r"step_(\d{8,})\.pt(\.stale)?", path.name)
    if match:
        return int(match[1])
    return None


def existing(directory: Path) -> list[Path]:
    """The checkpoints in rotation, valid or not, the latest step first."""
    checkpoints = (path for path in directory.glob("step_*.pt") if step_of(path) is not None)
    return sorted(checkpoints, key=lambda path: step_of(path) or 0, reverse=True)


@dataclass(frozen=True)
class ResumeChoice:
    """The verified checkpoint to resume from, or None for the beginning; and why newer ones were rejected."""

    path: Path | None
    rejected: list[str] = field(default_factory=list)


def choose(resume: str, directory: Path) -> ResumeChoice:
    """Choose a checkpoint by --resume: a path, ``auto`` or ``none``. Raises CheckpointError if a path is not valid."""
    if resume in ("", "none"):
        return ResumeChoice(None)
    if resume != "auto":
        files.verify(Path(resume))
        return ResumeChoice(Path(resume))
    rejected: list[str] = []
    for path in existing(directory):
        try:
            files.verify(path)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            return ResumeChoice(path, rejected)
    return ResumeChoice(None, rejected)


def begin_branch(directory: Path, step: int, resumed_from: Path | None = None) -> list[Path]:
    """Make checkpoints after `step` stale, and remove what a killed process left unfinished. Returns their new names.

    The best one becomes stale, too, if it is later: the new branch must not compete with it. So does one of `step`
    itself if the run resumes from another folder.
    """
    files.remove_unfinished(directory)
    elsewhere = resumed_from is not None and not resumed_from.is_relative_to(directory.resolve())
    first = step if elsewhere else step + 1
    later = [path for path in existing(directory) if (step_of(path) or 0) >= first]
    with contextlib.suppress(CheckpointError):
        best = files.best_file(directory)
        if read(best)["step"] > step:
            later.append(best)
    return [files.set_aside(path) for path in later]


def prune(directory: Path, keep: int, *, known_valid: Path | None = None) -> None:
    """Delete all but the newest `keep` checkpoints in rotation, provided that one of those is valid.

    `known_valid` is not verified, because it has just been written. Raises OSError.
    """
    checkpoints = existing(directory)
    kept_paths = checkpoints[:keep]
    victims = checkpoints[keep:]
    newest = max((step_of(path) or 0 for path in kept_paths), default=0)
    victims += [path for path in directory.glob("step_*.pt.stale") if (step_of(path) or 0) <= newest]
    if victims and (known_valid in kept_paths or choose("auto", directory).path in kept_paths):
        for path in victims:
            files.remove(path)


def best_value(directory: Path, metric: str) -> float | None:
    """The value to beat: the metric of the best checkpoint; None if there is no valid one with this metric."""
    path = files.best_file(directory)
    try:
        files.verify(path)
        value = read(path)["metrics"].get(metric)
    except CheckpointError:
        return None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def read(path: Path) -> State:
    """The content of a checkpoint, without its shards. Raises CheckpointError if it has another format."""
    state = load_file(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} was not written by this version of the trainer (no format {FORMAT}); choose another"
            " one, or start over with --resume none"
        )
    return state


def load(path: Path) -> State:
    """A verified checkpoint's content: full tensors on the CPU, read when they are used. Raises CheckpointError."""
    state = read(path)
    if "shards" not in state:
        return state
    folder = files.shards_folder(path)
    return assembled(state, [load_file(folder / name) for name in sorted(state["shards"])], path)


def check_fits(state: State, settings: Settings, path: Path) -> None:
    """Raise CheckpointError if a checkpoint has other shapes, or another optimizer, than the phase that continues.

    With reset_optimizer, the optimizer may differ; strategy and number of ranks always may.
    """
    # Settings that came later have their defaults.
    saved = {**Settings.model_validate({}).model_dump(mode="json"), **state["config"]}
    current = settings.model_dump(mode="json")
    for name in SHAPE_SETTINGS:
        if saved[name] != current[name]:
            raise CheckpointError(
                f"checkpoint {path} was made with {flag(name)} {saved[name]!r}, this run has {current[name]!r};"
                " use the same value, or --resume none"
            )
    optimizer = saved["optimizer"]
    if optimizer != settings.optimizer and not settings.reset_optimizer:
        raise CheckpointError(
            f"checkpoint {path} was made with --optimizer {optimizer}, this run has {settings.optimizer}: use the same,"
            " or give --reset-optimizer to start the optimizer's state afresh"
        )
