"""Which of a run's old checkpoints may go, and removing them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from gputui.recovery.checkpoint_ledger import course as ledger_course
from gputui.recovery.checkpoint_ledger import out_of_order
from gputui.recovery.checkpoint_search import CheckpointSearch, is_unchanged, surveyed
from gputui.recovery.checkpoints import validate
from gputui.recovery.checksums import CHECKSUM_SUFFIX, ChecksumError, read_checksums
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that were written before the ``keep`` newest valid ones; nothing where
    there are fewer, or where names and times contradict each other. Those that are rewritten again and again (best.pt,
    last.pt) stay, and so do the one that the run continues from and whatever `_unbound` finds to be bound to others.

    Raises OSError with some of them left.
    """
    rows = surveyed(search)
    if out_of_order(rows, search.attempts) is not None:
        return []
    course = [row for row in ledger_course(rows, search.attempts) if row.is_written]
    newest = _newest(course, keep, search.folder)
    if newest is None:
        return []
    kept = {row.path for row in newest} | {resume_from}
    old = {row.path for row in course if not (row.path in kept or is_rewritten(row.name)) and is_unchanged(row)}
    files = [_PrunedFile.of(row, search.folder) for row in rows]
    lone = {_place(Path(resume_from))} if resume_from is not None else set()
    kept_files = [file for file in files if file.path in kept]
    unbound = _unbound([file for file in files if file.path in old], files, kept_files, lone, _links(search.folder))
    places = {file.place for file in unbound}
    removed = []
    for file in unbound:
        if places & file.around:
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
    """The rows of the course down to the ``keep``-th newest valid checkpoint, None if there are fewer."""
    checkpoints: dict[int | str, list[CheckpointRow]] = {}
    for row in course:
        checkpoints.setdefault(_identity(row, folder), []).append(row)
    newest: list[CheckpointRow] = []
    kept = 0
    for rows in checkpoints.values():
        if kept == keep:
            break
        newest += rows
        # One from which an attempt failed to begin is no ground to remove those before it.
        if all(row.failed_starts == 0 for row in rows):
            infos = [validate(Path(row.path)) for row in rows]
            kept += any(info.valid for info in infos) and all(info.valid or info.is_unknown for info in infos)
    return newest if kept == keep else None


def _identity(row: CheckpointRow, folder: Path) -> int | str:
    """What the files of one checkpoint, such as one per rank, have in common: the step in the outermost name, as the
    ranks may write at different steps of the metrics; else that of the metrics; a file of no known step is one."""
    path = Path(row.path)
    names = path.relative_to(folder).parts if path.is_relative_to(folder) else (path.name,)
    named = next((step for name in names if (step := explicit_step(name)) is not None), row.step)
    return row.path if named is None else named


@dataclass(frozen=True, slots=True)
class _PrunedFile:
    """What `_unbound` decides by. ``place``: its path without links to its folder, which are not resolved in the path
    itself; ``around``: the folders that it lies in; ``parts``: the places of what its checksum file names."""

    path: str
    step: int | None
    identity: int | str
    place: str
    around: frozenset[str]
    parts: frozenset[str]

    @classmethod
    def of(cls, row: CheckpointRow, folder: Path) -> _PrunedFile:
        """Raises OSError."""
        place = _place(Path(row.path))
        return cls(row.path, row.step, _identity(row, folder), place, _around(place), _parts(Path(row.path)))


def _unbound(
    old: Sequence[_PrunedFile],
    files: Sequence[_PrunedFile],
    kept: Sequence[_PrunedFile],
    lone: Collection[str],
    links: Sequence[tuple[str, str]],
) -> list[_PrunedFile]:
    """Those of the old ones without which everything else is still whole. Pure.

    Bound is what holds, or lies in, something that stays, what a link outside of it leads to, what the checksum file of
    something that stays names, and what has the step of one of the ``kept`` or of one that is bound.
    """
    left, whole = list(old), list(kept)
    while True:
        going = {file.place for file in left}
        staying = set(lone).union(*({file.place, *file.parts} for file in files if file.place not in going))
        occupied = staying.union(*map(_around, staying))
        steps = {file.step for file in whole} - {None}
        identities = {file.identity for file in whole}
        bound = [
            file
            for file in left
            if file.place in occupied
            or file.around & staying
            or file.step in steps
            or file.identity in identities
            or any(
                target == file.place or target in file.around or file.place in _around(target)
                for link, target in links
                if link != file.place and file.place not in _around(link)
            )
        ]
        if not bound:
            return left
        whole += bound
        left = [file for file in left if file not in bound]


def _place(path: Path) -> str:
    return str(path.parent.resolve() / path.name)


def _around(place: str) -> frozenset[str]:
    return frozenset(map(str, PurePath(place).parents))


def _parts(path: Path) -> frozenset[str]:
    """The places that the checksum file beside a checkpoint names. Raises OSError."""
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
    """The links below a folder: their places, each with the next and with the last place that it leads to.
    Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for around, folders, names in os.walk(folder, onerror=fail):
        for path in (Path(around, name) for name in (*folders, *names)):
            if path.is_symlink():
                following = path.parent / path.readlink()
                found += [(_place(path), target) for target in (_place(following), os.path.realpath(path))]
    return found


def is_rewritten(name: str) -> bool:
    """A name that says which checkpoint it is, not when it was written."""
    return not any(character.isdigit() for character in name) or any(
        word in name.lower() for word in ("best", "last", "latest", "final")
    )
