"""Pruning of a run's old checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gputui.recovery.checkpoints.files import CHECKSUM_SUFFIX
from gputui.recovery.checkpoints.formats import InvalidError, checksums_of, validate
from gputui.recovery.checkpoints.ledger import candidates_by_age
from gputui.recovery.checkpoints.search import CheckpointSearch, is_unchanged, surveyed
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow

_REWRITTEN = ("best", "last", "latest", "final")


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that are older than the ``keep`` newest valid
    ones, and return them. Nothing is removed if there are fewer. Rewritten files (best.pt, last.pt)
    stay, the checkpoint to resume from, what a link leads to, and what contains, is in, or is named
    by the checksum file of something that stays; and all of a save of which a part stays. Raises
    OSError with some of them left."""
    rows = [row for row in surveyed(search) if row.gone_at is None]
    folder = search.real_folder
    saves: dict[int | str, list[CheckpointRow]] = {}
    for row in candidates_by_age(rows, search.attempts):
        if row.is_written and Path(row.path).is_relative_to(folder):
            saves.setdefault(_save_of(row, folder), []).append(row)
    going, valid_count = list(saves), 0
    while going and valid_count < keep:
        valid_count += _is_valid(saves[going.pop(0)])
    if valid_count < keep:
        return []
    links = _links(folder)
    staying = set() if resume_from is None else {Path(resume_from)}
    staying |= {
        Path(row.path)
        for row in rows
        if not is_unchanged(row)
        or not any(character.isdigit() for character in row.name)
        or any(word in row.name.lower() for word in _REWRITTEN)
        or all(row not in saves[save] for save in going)
    }
    while True:
        kept = {_place(each) for path in staying for each in (path, *_parts(path))}
        bound = [
            save
            for save in going
            for path in [_place(Path(row.path)) for row in saves[save]]
            if any(_is_nested(each, path) for each in kept)
            or any(_is_nested(to, path) and not link.is_relative_to(path) for link, to in links)
        ]
        if not bound:
            break
        going = [save for save in going if save not in bound]
        staying |= {Path(row.path) for save in bound for row in saves[save]}
    removed = []
    for path in (Path(row.path) for save in going for row in saves[save]):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may have gone with its folder
        path.with_name(path.name + CHECKSUM_SUFFIX).unlink(missing_ok=True)
        removed.append(path)
    return removed


def _is_valid(save: Sequence[CheckpointRow]) -> bool:
    """Whether a save counts: not one from which an attempt failed to start."""
    if any(row.failed_starts for row in save):
        return False
    infos = [validate(Path(row.path)) for row in save]
    return any(info.valid for info in infos) and all(i.valid or i.is_unknown for i in infos)


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


def _parts(path: Path) -> list[Path]:
    """The files in a checkpoint's checksum file. Raises OSError."""
    with suppress(InvalidError):
        recorded = checksums_of(path)
        return [] if recorded is None else [path.parent / name for name in recorded.parts]
    return []


def _links(folder: Path) -> list[tuple[Path, Path]]:
    """The links below a folder, each with its direct and with its final target. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    links = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink():
                targets = (_place(path.parent / path.readlink()), path.resolve())
                links += [(_place(path), target) for target in targets]
    return links
