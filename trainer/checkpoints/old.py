"""Checkpoints that are either whole or refused.

``step_00000040.pt`` is written under another name, flushed to disk and then renamed; ``step_00000040.pt.sha256`` beside
it, in the format of ``sha256sum``, is there before the checkpoint becomes visible. A checkpoint without a matching hash
is never loaded. Loading takes tensors and plain values only, so a checkpoint cannot run code.

When a run continues from a checkpoint, those of later steps belong to a branch that is left: they get the suffix
``.stale`` and are deleted once the new branch has valid checkpoints as far along.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer.config import SHAPE_SETTINGS, flag
from trainer.errors import CheckpointError

FORMAT = 1

_NAME = re.compile(r"step_(\d{8,})\.pt")
_STALE = ".stale"

State = dict[str, Any]


def path_for(directory: Path, step: int) -> Path:
    return directory / f"step_{step:08d}.pt"


def save(state: State, path: Path) -> int:
    """Writes a checkpoint and its hash; returns its size in bytes.

    Raises OSError where the disk is full or not writable; all other checkpoints are then as they were.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    hash_temporary = path.with_name(f".{path.name}.sha256.tmp")
    try:
        with temporary.open("wb", buffering=0) as raw:
            digest, size = _write_hashed(state, raw)
        with hash_temporary.open("wb") as file:
            file.write(f"{digest}  {path.name}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        hash_temporary.replace(_hash_path(path))
        temporary.replace(path)
        _sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            hash_temporary.unlink(missing_ok=True)
        raise
    return size


def verify(path: Path) -> None:
    """Raises CheckpointError unless the file is there and its content has the SHA-256 recorded beside it."""
    try:
        recorded = _hash_path(path).read_text(encoding="utf-8").split()[:1]
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} cannot be used: {error.filename} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from None
    if recorded != [actual]:
        raise CheckpointError(f"checkpoint {path} is corrupt: sha256 mismatch")


def load(path: Path) -> State:
    """The content of a verified checkpoint, on the CPU. Raises CheckpointError where it is something else."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here; all mean that this file is no checkpoint of ours
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint {path} was not written by this trainer (no format {FORMAT})")
    return state


def check_fits(state: State, config: State, path: Path) -> None:
    """Raises CheckpointError where a checkpoint was made with other shapes than the settings `config` ask for."""
    for name in SHAPE_SETTINGS:
        made_with = state["config"][name]
        if made_with != config[name]:
            raise CheckpointError(
                f"checkpoint {path} was made with {flag(name)} {made_with}, this run has {config[name]}; use the same"
                " value, or --resume none"
            )


def existing(directory: Path) -> list[Path]:
    """The checkpoints of a directory, valid or not, that of the latest step first."""
    found = [path for path in _children(directory) if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    match = _NAME.match(path.name)
    return int(match[1]) if match else -1


@dataclass(frozen=True)
class Choice:
    """Where to start from: a verified checkpoint or None for the beginning, and why newer ones were passed over."""

    path: Path | None
    rejected: list[str] = field(default_factory=list)


def choose(resume: str, directory: Path) -> Choice:
    """What `resume` (a path, ``auto`` or ``none``) means. Raises CheckpointError where a path given is not valid."""
    if resume == "none":
        return Choice(None)
    if resume != "auto":
        verify(Path(resume))
        return Choice(Path(resume))
    rejected: list[str] = []
    for path in existing(directory):
        try:
            verify(path)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            return Choice(path, rejected)
    return Choice(None, rejected)


def begin_branch(directory: Path, step: int) -> list[Path]:
    """Prepares a directory for a run that goes on after `step`: later checkpoints are set aside.

    Returns their new names. Files that a killed predecessor was still writing are removed.
    """
    moved = []
    for path in _children(directory):
        if path.name.startswith(".step_") and path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)
    for path in existing(directory):
        if step_of(path) > step:
            moved.append(path.replace(path.with_name(path.name + _STALE)))
            with contextlib.suppress(FileNotFoundError):
                _hash_path(path).replace(_hash_path(path).with_name(_hash_path(path).name + _STALE))
    return moved


def prune(directory: Path, keep: int) -> None:
    """Deletes all but the newest `keep` checkpoints, provided that one of those is valid."""
    paths = existing(directory)
    newest = paths[:keep]
    stale = [path for path in _children(directory) if path.name.endswith(_STALE)]
    victims = paths[keep:] + [path for path in stale if newest and step_of(path) <= step_of(newest[0])]
    if not victims or not any(_is_valid(path) for path in newest):
        return
    for path in victims:
        path.unlink(missing_ok=True)
        _hash_path(path).unlink(missing_ok=True)


def random_state(device: torch.device) -> State:
    """The state of every random generator of this process, as plain values and tensors."""
    state: State = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: State, device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


class _HashingFile:
    """What torch.save writes into: passes everything on, hashes it on the way, and keeps the first error."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            while len(view):
                written = self._raw.write(view)
                self.hash.update(view[:written])
                self.size += written
                view = view[written:]
        except OSError as error:
            self.error = self.error or error
            raise
        return len(memoryview(data).cast("B"))

    def flush(self) -> None:
        """Nothing is buffered here."""


def _write_hashed(state: State, raw: Any) -> tuple[str, int]:
    sink = _HashingFile(raw)
    try:
        torch.save(state, cast(IO[bytes], sink))  # it needs no more of a file than write and flush
    except Exception:
        # torch turns a failed write into an error about positions in its archive; the disk's own words say more.
        if sink.error is not None:
            raise sink.error from None
        raise
    os.fsync(raw.fileno())
    return sink.hash.hexdigest(), sink.size


def _hash_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _is_valid(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def _children(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
