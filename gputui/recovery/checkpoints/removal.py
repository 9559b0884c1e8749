"""Pruning of a run's old checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from gputui.recovery.checkpoints.choices import is_unchanged
from gputui.recovery.checkpoints.resumable import candidates_by_age
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.runs.checkpoint_files import CHECKSUM_SUFFIX
from gputui.runs.checkpoint_formats import InvalidError, checksums_of, validate
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow

_REWRITTEN = ("best", "last", "latest", "final")


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that are older than the ``keep`` newest valid
    ones, and return them. Nothing is removed if there are fewer. Raises OSError with some left.

    Rewritten files (best.pt, last.pt) stay, the checkpoint to resume from, what a link leads to,
    what the checksum file of another names, and what contains or is in something that stays; and
    all of a save of which a part stays.
    """
    rows = [row for row in surveyed(search) if row.gone_at is None]
    folder = search.real_folder
    saves: dict[int | str, list[CheckpointRow]] = {}
    for row in candidates_by_age(rows, search.attempts):
        if row.is_written and Path(row.path).is_relative_to(folder):
            saves.setdefault(_save_of(row, folder), []).append(row)
    old, valid_count = list(saves.values()), 0
    while old and valid_count < keep:
        valid_count += _is_valid(old.pop(0))
    if valid_count < keep:
        return []
    staying = {Path(row.path) for row in rows if _stays(row) or not any(row in save for save in old)}
    if resume_from is not None:
        staying.add(Path(resume_from))
    links = _links(folder)
    # A save that stays may need another one.
    while needed := [save for save in old if _is_needed(save, staying, links)]:
        old = [save for save in old if save not in needed]
        staying |= {Path(row.path) for save in needed for row in save}
    removed = [Path(row.path) for save in old for row in save]
    for path in removed:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may have gone with its folder
        path.with_name(path.name + CHECKSUM_SUFFIX).unlink(missing_ok=True)
    return removed


def _is_needed(save: Sequence[CheckpointRow], staying: Collection[Path], links: Sequence[tuple[Path, Path]]) -> bool:
    """Return whether a part of a save contains, is in, or is named by something that stays, or is
    what a link leads to. Raises OSError."""
    places = {_place(each) for path in staying for each in (path, *_other_parts(path))}
    for path in (_place(Path(row.path)) for row in save):
        outside = {to for link, to in links if not link.is_relative_to(path)}
        if any(_is_nested(path, place) for place in places | outside):
            return True
    return False


def _stays(row: CheckpointRow) -> bool:
    """Return whether a file is rewritten by its script, or was since the scan."""
    is_numbered = any(character.isdigit() for character in row.name)
    is_rewritten = any(word in row.name.lower() for word in _REWRITTEN)
    return not is_numbered or is_rewritten or not is_unchanged(row)


def _is_valid(save: Sequence[CheckpointRow]) -> bool:
    """Return whether a save counts: not one from which an attempt failed to start."""
    if any(row.failed_starts for row in save):
        return False
    infos = [validate(Path(row.path)) for row in save]
    return any(info.valid for info in infos) and all(info.valid or info.is_unknown for info in infos)


def _save_of(row: CheckpointRow, folder: Path) -> int | str:
    """A key for the files of one save, such as one per rank: the step in the outermost name,
    because ranks may write at different steps of the metrics; else the step of the metrics; without
    one, the path."""
    names = Path(row.path).relative_to(folder).parts
    told = (step for name in names if (step := explicit_step(name)) is not None)
    named = next(told, row.step)
    return row.path if named is None else named


def _is_nested(place: Path, other: Path) -> bool:
    return place.is_relative_to(other) or other.is_relative_to(place)


def _place(path: Path) -> Path:
    """The path with the links of its folder resolved."""
    return path.parent.resolve() / path.name


def _other_parts(path: Path) -> list[Path]:
    """The other files that a checkpoint's checksum file names. Raises OSError."""
    with suppress(InvalidError):
        recorded = checksums_of(path)
        if recorded is not None:
            return [path.parent / name for name in recorded.parts]
    return []


def _links(folder: Path) -> list[tuple[Path, Path]]:
    """The links below a folder, each with where it leads directly and in the end. Raises
    OSError."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink():
                targets = (_place(path.parent / path.readlink()), path.resolve())
                found += [(_place(path), target) for target in targets]
    return found
