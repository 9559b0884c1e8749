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


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that are older than the ``keep`` newest valid ones, and return them.
    Nothing is removed if there are fewer. Rewritten files (best.pt, last.pt), the checkpoint to resume from, and files
    that others depend on (`_unbound`) stay. Raises OSError with some of them left."""
    rows = [row for row in surveyed(search) if row.gone_at is None]
    folder = search.real_folder
    course = [
        row
        for row in candidates_by_age(rows, search.attempts)
        if row.is_written and Path(row.path).is_relative_to(folder)
    ]
    newest = _newest(course, keep, folder)
    if newest is None:
        return []
    kept = {row.path for row in newest} | {resume_from}
    saves = {_save_of(row, folder) for row in course if row.path in kept}
    old = [row for row in course if _save_of(row, folder) not in saves and not _is_rewritten(row.name)]
    protected = [] if resume_from is None else [Path(resume_from)]
    going = _unbound([row for row in old if is_unchanged(row)], rows, protected, folder)
    removed = []
    for path in (Path(row.path) for row in going):
        if any(parent in removed for parent in path.parents):
            continue  # it went with its folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.with_name(path.name + CHECKSUM_SUFFIX).unlink(missing_ok=True)
        removed.append(path)
    return removed


def _newest(course: Sequence[CheckpointRow], keep: int, folder: Path) -> list[CheckpointRow] | None:
    """The rows of the course down to the ``keep``-th newest valid checkpoint; None if there are fewer."""
    saves: dict[int | str, list[CheckpointRow]] = {}
    for row in course:
        saves.setdefault(_save_of(row, folder), []).append(row)
    newest: list[CheckpointRow] = []
    valid_count = 0
    for rows in saves.values():
        if valid_count == keep:
            break
        newest += rows
        # A checkpoint from which an attempt failed to start does not count.
        if all(row.failed_starts == 0 for row in rows):
            infos = [validate(Path(row.path)) for row in rows]
            valid_count += any(info.valid for info in infos) and all(info.valid or info.is_unknown for info in infos)
    return newest if valid_count == keep else None


def _save_of(row: CheckpointRow, folder: Path) -> int | str:
    """A key for the files of one save, such as one per rank: the step in the outermost name, because ranks may write at
    different steps of the metrics; else the step of the metrics; without one, the path."""
    names = Path(row.path).relative_to(folder).parts if Path(row.path).is_relative_to(folder) else (row.name,)
    named = next((step for name in names if (step := explicit_step(name)) is not None), row.step)
    return row.path if named is None else named


def _unbound(
    old: Sequence[CheckpointRow], rows: Sequence[CheckpointRow], protected: Sequence[Path], folder: Path
) -> list[CheckpointRow]:
    """The old files that can be removed without damage to the others: not those that contain, or are contained in,
    something that stays, nor those that a link or the checksum file of something that stays names. What is of the save
    of one that stays, stays too. Raises OSError."""
    links = _links(folder)
    going = {row.path: row for row in old}
    while True:
        staying = {_place(path) for path in protected}
        for row in rows:
            if row.path not in going:
                staying |= {_place(Path(row.path)), *_parts(Path(row.path))}
        places = {path: _place(Path(path)) for path in going}
        bound = {
            path
            for path, place in places.items()
            if any(_are_nested(each, place) for each in staying)
            or any(_are_nested(target, place) and not link.is_relative_to(place) for link, target in links)
        }
        saves = {_save_of(going[path], folder) for path in bound}
        bound |= {path for path, row in going.items() if _save_of(row, folder) in saves}
        if not bound:
            return list(going.values())
        going = {path: row for path, row in going.items() if path not in bound}


def _are_nested(place: Path, other: Path) -> bool:
    return place.is_relative_to(other) or other.is_relative_to(place)


def _place(path: Path) -> Path:
    """The path with the links of its folder resolved."""
    return path.parent.resolve() / path.name


def _parts(path: Path) -> list[Path]:
    """The places of the files in a checkpoint's checksum file. Raises OSError."""
    with suppress(InvalidError):
        recorded = checksums_of(path)
        return [] if recorded is None else [_place(path.parent / name) for name in recorded.parts]
    return []


def _links(folder: Path) -> list[tuple[Path, Path]]:
    """The links below a folder, each paired with its direct and with its final target. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    links = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink():
                targets = (_place(path.parent / path.readlink()), Path(os.path.realpath(path)))
                links += [(_place(path), target) for target in targets]
    return links


def _is_rewritten(name: str) -> bool:
    """Whether the name is that of a file that is overwritten, such as best.pt."""
    return not any(character.isdigit() for character in name) or any(
        word in name.lower() for word in ("best", "last", "latest", "final")
    )
