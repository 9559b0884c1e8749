"""Pruning of a run's old checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath

from msgspec import Struct

from gputui.recovery.checkpoint_ledger import candidates_by_age, out_of_order
from gputui.recovery.checkpoint_search import is_unchanged, surveyed
from gputui.recovery.checkpoints import validate
from gputui.recovery.checksums import CHECKSUM_SUFFIX, ChecksumError, read_checksums
from gputui.recovery.ledger_inputs import CheckpointSearch
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that are older than the ``keep`` newest valid ones, and return them.
    Nothing is removed if there are fewer, or if names and times contradict each other. Rewritten files (best.pt,
    last.pt), the checkpoint to resume from, and files that others depend on (`_unbound`) stay. Raises OSError with some
    of them left."""
    rows = surveyed(search)
    if out_of_order(rows, search.attempts) is not None:
        return []
    folder = search.real_folder
    course = [
        row
        for row in candidates_by_age(rows, search.attempts)
        if row.is_written and Path(row.path).is_relative_to(folder)
    ]
    newest = _newest(course, keep, folder)
    if newest is None:
        return []
    kept_paths = {row.path for row in newest} | {resume_from}
    old_paths = {
        row.path for row in course if not (row.path in kept_paths or is_rewritten(row.name)) and is_unchanged(row)
    }
    files = [_PrunedFile.of(row, folder) for row in rows]
    protected_places = {_place(Path(resume_from))} if resume_from is not None else set()
    kept_files = [file for file in files if file.path in kept_paths]
    unbound = _unbound(
        [file for file in files if file.path in old_paths], files, kept_files, protected_places, _links(folder)
    )
    places = {file.place for file in unbound}
    removed = []
    for file in unbound:
        if places & file.parents:
            continue  # it goes with its folder
        path = Path(file.path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.with_name(path.name + CHECKSUM_SUFFIX).unlink(missing_ok=True)
        removed.append(path)
    return removed


def _newest(course: Sequence[CheckpointRow], keep: int, folder: Path) -> list[CheckpointRow] | None:
    """The rows of the course down to the ``keep``-th newest valid checkpoint; None if there are fewer."""
    checkpoints: dict[int | str, list[CheckpointRow]] = {}
    for row in course:
        checkpoints.setdefault(_identity(row, folder), []).append(row)
    newest: list[CheckpointRow] = []
    valid_count = 0
    for rows in checkpoints.values():
        if valid_count == keep:
            break
        newest += rows
        # A checkpoint from which an attempt failed to start does not count.
        if all(row.failed_starts == 0 for row in rows):
            infos = [validate(Path(row.path)) for row in rows]
            valid_count += any(info.valid for info in infos) and all(info.valid or info.is_unknown for info in infos)
    return newest if valid_count == keep else None


def _identity(row: CheckpointRow, folder: Path) -> int | str:
    """A key for the files of one checkpoint, such as one per rank: the step in the outermost name, because ranks may
    write at different steps of the metrics; else the step of the metrics; without one, the path."""
    path = Path(row.path)
    names = path.relative_to(folder).parts if path.is_relative_to(folder) else (path.name,)
    named = next((step for name in names if (step := explicit_step(name)) is not None), row.step)
    return row.path if named is None else named


class _PrunedFile(Struct, frozen=True):
    """The input of `_unbound`. ``place``: its path with the links of its folder resolved; ``parents``: the folders that
    contain it; ``parts``: the places of the files in its checksum file."""

    path: str
    step: int | None
    identity: int | str
    place: str
    parents: frozenset[str]
    parts: frozenset[str]

    @classmethod
    def of(cls, row: CheckpointRow, folder: Path) -> _PrunedFile:
        """Raises OSError."""
        place = _place(Path(row.path))
        return cls(row.path, row.step, _identity(row, folder), place, _parents(place), _parts(Path(row.path)))


def _unbound(
    old: Sequence[_PrunedFile],
    files: Sequence[_PrunedFile],
    kept: Sequence[_PrunedFile],
    protected: Collection[str],
    links: Sequence[tuple[str, str]],
) -> list[_PrunedFile]:
    """The old files that can be removed without damage to the others. Pure.

    A file is bound, and stays, if it contains, or is contained in, something that stays; if a link from outside leads
    to it; if the checksum file of something that stays names it; or if it has the step of a kept or bound file.
    """
    removable, staying_files = list(old), list(kept)
    while True:
        going = {file.place for file in removable}
        staying = set(protected).union(*({file.place, *file.parts} for file in files if file.place not in going))
        occupied = staying.union(*map(_parents, staying))
        steps = {file.step for file in staying_files} - {None}
        identities = {file.identity for file in staying_files}
        bound = [
            file
            for file in removable
            if file.place in occupied
            or file.parents & staying
            or file.step in steps
            or file.identity in identities
            or any(
                target == file.place or target in file.parents or file.place in _parents(target)
                for link, target in links
                if link != file.place and file.place not in _parents(link)
            )
        ]
        if not bound:
            return removable
        staying_files += bound
        removable = [file for file in removable if file not in bound]


def _place(path: Path) -> str:
    return str(path.parent.resolve() / path.name)


def _parents(place: str) -> frozenset[str]:
    return frozenset(map(str, PurePath(place).parents))


def _parts(path: Path) -> frozenset[str]:
    """The places of the files in a checkpoint's checksum file. Raises OSError."""
    beside = path.with_name(path.name + CHECKSUM_SUFFIX)
    if not beside.is_file():
        return frozenset()
    try:
        with beside.open("rb") as file:
            names = read_checksums(file, path.name).parts
    except ChecksumError:
        return frozenset()
    return frozenset(_place(path.parent / name) for name in names)


def _links(folder: Path) -> list[tuple[str, str]]:
    """The links below a folder, each paired with its direct and with its final target. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    links = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink():
                target_path = path.parent / path.readlink()
                links += [(_place(path), target) for target in (_place(target_path), os.path.realpath(path))]
    return links


def is_rewritten(name: str) -> bool:
    """Whether the name is that of a file that is overwritten, such as best.pt."""
    return not any(character.isdigit() for character in name) or any(
        word in name.lower() for word in ("best", "last", "latest", "final")
    )
