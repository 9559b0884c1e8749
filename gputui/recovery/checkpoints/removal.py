"""Pruning of a run's old checkpoints."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.recovery.checkpoints.choices import is_unchanged
from gputui.recovery.checkpoints.resumable import candidates_by_age
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.runs.checkpoint_files import CHECKSUM_SUFFIX
from gputui.runs.checkpoint_formats import InvalidError, checksums_of, validate
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow
from gputui.store.database import open_reader
from gputui.store.metrics.queries import reported_values
from gputui.store.metrics.roles import Mode

# Parts of the names of files that a script writes over.
_REWRITTEN = ("best", "last", "latest", "final")

Save = Sequence[CheckpointRow]
"""The files of one save, such as one per rank."""


class Keep(Struct, frozen=True):
    """What is kept of a run's checkpoints.

    Attributes:
        newest: how many of the newest valid ones.
        paths: what others may need: a checkpoint, or a file in its folder.
        best: the metric by which the best one is kept, with ``mode``; None for none.
    """

    newest: int
    paths: Collection[str] = ()
    best: str | None = None
    mode: Mode = "min"


class PruneResult(Struct, frozen=True):
    """The outcome of pruning.

    Attributes:
        removed: the paths of the removed checkpoints.
        valid: the content of the checkpoints that were found valid, by path.
    """

    removed: tuple[str, ...] = ()
    valid: Mapping[str, str] = msgspec.field(default_factory=dict)


def prune(search: CheckpointSearch, keep: Keep) -> PruneResult:
    """Remove the checkpoints of the run's lineage that are older than the newest valid ones that are kept.

    Nothing is removed if there are fewer. Rewritten files (best.pt, last.pt) stay, the checkpoints
    that somebody needs, what a link leads to, what the checksum file of another names, and what
    contains or is in something that stays; and all of a save of which a part stays. The newest save
    of an attempt that lives may be incomplete: it stays, and does not count.

    Raises:
        OSError: with some left.
        StoreError, sqlite3.Error: the metrics cannot be read.
    """
    rows = [row for row in surveyed(search) if row.gone_at is None]
    folder = search.real_folder
    saves = _saves_by_age(candidates_by_age(rows, search.attempts), folder)
    complete_saves = saves
    if search.attempts and search.attempts[-1].ended_at is None:
        complete_saves = saves[1:]
    valid, older = _split_off_valid(complete_saves, keep.newest)
    valid_content = {row.path: row.content for save in valid for row in save}
    if len(valid) < keep.newest:
        return PruneResult(valid=valid_content)
    staying = _staying_paths(rows, older, keep)
    if keep.best is not None:
        staying |= {Path(row.path) for row in best_save(search, saves, keep.best, keep.mode)}
    removed = _unneeded_paths(older, staying, _links(folder))
    for path in removed:
        _remove(path)
    return PruneResult(tuple(map(str, removed)), valid_content)


def _staying_paths(rows: Iterable[CheckpointRow], old: Sequence[Save], keep: Keep) -> set[Path]:
    """The paths that stay by themselves: all but those of the old saves, and what is rewritten or needed by others."""
    old_rows = [row for save in old for row in save]
    staying = set()
    for row in rows:
        is_needed = any(Path(path).is_relative_to(row.path) for path in keep.paths)
        if row not in old_rows or is_needed or _stays(row):
            staying.add(Path(row.path))
    return staying


def _unneeded_paths(old: Sequence[Save], staying: Collection[Path], links: Sequence[tuple[Path, Path]]) -> list[Path]:
    """The paths of the old saves of which nothing that stays needs a part. Raises OSError."""
    unneeded = list(old)
    needing = set(staying)
    # A save that stays may need another one.
    while needed := [save for save in unneeded if _is_needed(save, needing, links)]:
        unneeded = [save for save in unneeded if save not in needed]
        needing |= {Path(row.path) for save in needed for row in save}
    return [Path(row.path) for save in unneeded for row in save]


def _saves_by_age(rows: Iterable[CheckpointRow], folder: Path) -> list[Save]:
    """The saves in a folder that were written, in the order of their first rows."""
    saves: dict[int | str, list[CheckpointRow]] = {}
    for row in rows:
        if row.is_written and Path(row.path).is_relative_to(folder):
            saves.setdefault(_save_of(row, folder), []).append(row)
    return list(saves.values())


def _split_off_valid(saves: Sequence[Save], count: int) -> tuple[list[Save], list[Save]]:
    """The first ``count`` valid saves, or fewer, and the saves after the last of them. Raises OSError."""
    valid: list[Save] = []
    remaining = list(saves)
    while remaining and len(valid) < count:
        save = remaining.pop(0)
        # One that an attempt failed to start from does not count.
        has_failed = any(row.failed_starts for row in save)
        if not has_failed and all(row.verdict == "valid" or _is_whole(row) for row in save):
            valid.append(save)
    return valid, remaining


def _remove(path: Path) -> None:
    """Remove a checkpoint and its checksum file. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # it may have gone with its folder
    path.with_name(path.name + CHECKSUM_SUFFIX).unlink(missing_ok=True)


def best_save(search: CheckpointSearch, saves: Iterable[Save], metric: str, mode: Mode) -> Save:
    """The save whose attempt had the best value of a metric when it was at its step, the newest of equals. Raises
    StoreError, sqlite3.Error.

    Returns:
        Nothing without a value.
    """
    with closing(open_reader(search.database)) as connection:
        values, _ = reported_values(connection, search.run_id, [metric], "step", {})
    best: Save = ()
    best_cost = math.inf
    for save in saves:
        attempt = save[0].attempt
        step = save[0].step
        if step is None:
            continue
        before = [report.value for report in values if report.attempt == attempt and report.step <= step]
        if not before or not math.isfinite(before[-1]):
            continue
        cost = before[-1]
        if mode == "max":
            cost = -cost
        if cost < best_cost:
            best = save
            best_cost = cost
    return best


def _is_needed(save: Save, staying: Collection[Path], links: Sequence[tuple[Path, Path]]) -> bool:
    """Return whether a part of a save contains, is in, or is named by something that stays, or is
    what a link leads to. Raises OSError."""
    needed = set()
    for path in staying:
        needed |= {_with_real_folder(part) for part in (path, *_other_parts(path))}
    for row in save:
        path = _with_real_folder(Path(row.path))
        targets = {target for link, target in links if not link.is_relative_to(path)}
        if any(_is_nested(path, needed_path) for needed_path in needed | targets):
            return True
    return False


def _stays(row: CheckpointRow) -> bool:
    """Return whether a file is rewritten by its script, or was since the scan."""
    is_numbered = any(character.isdigit() for character in row.name)
    is_rewritten = any(word in row.name.lower() for word in _REWRITTEN)
    return not is_numbered or is_rewritten or not is_unchanged(row)


def _is_whole(row: CheckpointRow) -> bool:
    """Return whether a file is whole, as far as its format can be checked."""
    info = validate(Path(row.path))
    return info.valid or (info.is_unknown and row.is_settled)


def _save_of(row: CheckpointRow, folder: Path) -> int | str:
    """A key for the files of one save, such as one per rank.

    It is the step in the outermost name, because ranks may write at different steps of the metrics;
    else the step of the metrics; without one, the path.
    """
    for name in Path(row.path).relative_to(folder).parts:
        step = explicit_step(name)
        if step is not None:
            return step
    if row.step is not None:
        return row.step
    return row.path


def _is_nested(first: Path, second: Path) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)


def _with_real_folder(path: Path) -> Path:
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

    links = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.is_symlink():
                targets = (_with_real_folder(path.parent / path.readlink()), path.resolve())
                links += [(_with_real_folder(path), target) for target in targets]
    return links
