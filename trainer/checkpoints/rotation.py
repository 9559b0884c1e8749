"""Checkpoints in rotation: listing, choosing one to resume from, loading, deleting.

If a run resumes from a checkpoint, those of later steps belong to an abandoned branch. They get the suffix ``.stale``,
and are deleted once the new branch has valid checkpoints of the same step. Checkpoints of epochs and the best one are
not in rotation, and never deleted here.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainer.checkpoints import best, files, hashes, names, sharded
from trainer.config import Settings
from trainer.config.problems import flag
from trainer.config.schema import SHAPE_SETTINGS
from trainer.errors import CheckpointError


def existing(directory: Path) -> list[Path]:
    """The checkpoints in rotation, valid or not, the latest step first."""
    return [path for _, path in sorted(_steps(directory), reverse=True) if names.is_step_file(path)]


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
        hashes.verify(Path(resume))
        return ResumeChoice(Path(resume))
    rejected: list[str] = []
    for path in existing(directory):
        try:
            hashes.verify(path)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            return ResumeChoice(path, rejected)
    return ResumeChoice(None, rejected)


def begin_branch(directory: Path, step: int) -> list[Path]:
    """Prepare a directory for a run that continues after `step`: later checkpoints become stale.

    Returns their new names. A best checkpoint of a later step becomes stale, too: the new branch must not compete with
    it. Unfinished files of a killed process are removed.
    """
    _remove_unfinished(directory)
    later = [path for path in existing(directory) if (names.step_of(path) or 0) > step]
    best_one = best.record(directory)
    if best_one is not None and best_one.step > step:
        later.append(best_one.path)
    return [_set_aside(path) for path in later]


def prune(directory: Path, keep: int, *, known_valid: Path | None = None) -> None:
    """Delete all but the newest `keep` checkpoints in rotation, provided that one of those is valid.

    `known_valid` is not verified, because it has just been written. Raises OSError.
    """
    kept = existing(directory)[:keep]
    victims = existing(directory)[keep:]
    if kept:
        newest = names.step_of(kept[0]) or 0
        victims += [path for step, path in _steps(directory) if path.name.endswith(names.STALE) and step <= newest]
    if not victims or not any(path == known_valid or hashes.is_valid(path) for path in kept):
        return
    for path in victims:
        if path.name.endswith(names.STALE):
            _remove_stale(path)
        else:
            files.remove(path)


def forget_stale_best(path: Path) -> None:
    """Delete the stale best checkpoint that `path` has replaced."""
    _remove_stale(_stale(path))
    _stale(best.record_file(path)).unlink(missing_ok=True)


def _steps(directory: Path) -> list[tuple[int, Path]]:
    """Checkpoint files of steps, also stale ones, with their steps."""
    steps = []
    for path in _children(directory):
        step = names.step_of(path)
        if step is not None and names.is_step_file(path.with_name(path.name.removesuffix(names.STALE))):
            steps.append((step, path))
    return steps


def _set_aside(path: Path) -> Path:
    # The main file first: without its name it is no checkpoint, even if the process dies before the others.
    stale = path.replace(_stale(path))
    for companion in (names.hash_file(path), best.record_file(path)):
        with contextlib.suppress(FileNotFoundError):
            companion.replace(_stale(companion))
    folder = names.shards_folder(path)
    if folder.is_dir():
        shutil.rmtree(_stale(folder), ignore_errors=True)
        folder.replace(_stale(folder))
    return stale


def _remove_stale(path: Path) -> None:
    original = path.with_name(path.name.removesuffix(names.STALE))
    shutil.rmtree(_stale(names.shards_folder(original)), ignore_errors=True)
    _stale(names.hash_file(original)).unlink(missing_ok=True)
    path.unlink(missing_ok=True)  # last: the other files are found by its name


def _stale(path: Path) -> Path:
    return path.with_name(path.name + names.STALE)


def _remove_unfinished(directory: Path) -> None:
    for path in _walk(directory):
        if names.is_temporary(path):
            path.unlink(missing_ok=True)
        elif names.is_shards_folder(path) and not path.with_suffix(".pt").exists():
            shutil.rmtree(path, ignore_errors=True)
        elif names.is_hash_file(path) and not path.with_suffix("").exists():
            path.unlink(missing_ok=True)


def _walk(directory: Path) -> Iterator[Path]:
    """All files and folders of checkpoints, a folder before what is in it."""
    for path in _children(directory):
        yield path
        if path.is_dir() and (names.is_shards_folder(path) or path.name.startswith("phase_")):
            yield from _walk(path)


def _children(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def load(path: Path) -> files.State:
    """The content of a verified checkpoint: full tensors on the CPU, read from disk when they are used.

    Of a sharded checkpoint they are in mappings, which assemble a tensor at each access. Raises CheckpointError.
    """
    state = files.read(path)
    return sharded.whole_state(state, path) if "shards" in state else state


def check_fits(state: files.State, settings: Settings, path: Path) -> None:
    """Raise CheckpointError if a checkpoint has other shapes, or another optimizer, than the settings.

    `settings` are those of the phase that continues. With reset_optimizer, the optimizer may differ. Strategy and
    number of ranks may always differ.
    """
    saved = state.get("config", {})
    current = settings.model_dump(mode="json")
    defaults = Settings.model_validate({"task": settings.task}).model_dump(mode="json")
    for name in SHAPE_SETTINGS:
        value = saved.get(name, defaults[name])
        if value != current[name]:
            raise CheckpointError(
                f"checkpoint {path} was made with {flag(name)} {_shown(value)}, this run has {_shown(current[name])};"
                " use the same value, or --resume none"
            )
    optimizer = saved.get("optimizer", settings.optimizer)
    if optimizer != settings.optimizer and not settings.reset_optimizer:
        raise CheckpointError(
            f"checkpoint {path} was made with --optimizer {optimizer}, this run has {settings.optimizer}: use the same,"
            " or give --reset-optimizer to start the optimizer's state afresh"
        )


def _shown(value: object) -> str:
    return str(value) if value != "" else "''"
