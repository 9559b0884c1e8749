"""Scan a run's checkpoint folder and update the ledger. Slow, so the agent does it in jobs."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints import ledger, resumable
from gputui.recovery.checkpoints.content import identified, kept_files
from gputui.recovery.checkpoints.ledger import UnsoundLoss
from gputui.recovery.checkpoints.resumable import AttemptSpan, Rows, Spans
from gputui.recovery.checkpoints.scans import FolderScan, after_scan
from gputui.recovery.checkpoints.steps import CheckpointSteps
from gputui.runs.checkpoint_files import (
    SAVED_SUFFIXES,
    FoundCheckpoint,
    files_of,
    list_checkpoints,
    measured,
)
from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.learned_checkpoints import LEARNED, written_checkpoints
from gputui.store.checkpoints import CheckpointRow, Neighbour
from gputui.store.database import open_reader

# A file that is unchanged for this long has stopped growing.
SETTLED_SECONDS = 3.0
# Number of older saves with which the last one is compared.
MOST_COMPARED = 3
_LOOKALIKES = frozenset({".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin", ".pkl", ".npz"})
_MOST_ENTRIES = 2000  # looked at within a second, also in the network
_MOST_DEPTH = 5  # RUN/version_N/checkpoints/step/shard, as libraries nest them


class CheckpointSearch(Struct, frozen=True):
    """Input of a scan and a search.

    Attributes:
        database: the store, read for the times of steps.
        rows: the run's ledger, with what is gone.
        attempts: the run's attempts, oldest first.
        writer: the attempt that lived since the last scan; None if none did.
        since: when that was (UTC unix seconds).
        neighbours: other runs of the home that may have written since.
        command_paths: paths that the run's command names; among them may be the folder of its checkpoints.
        metric_folders: folders below ``folder`` in which this run writes metrics, and no neighbour.
    """

    database: Path
    run_id: str
    folder: Path
    pattern: str
    rows: Rows
    attempts: tuple[AttemptSpan, ...]
    writer: int | None = None
    since: float = 0.0
    neighbours: tuple[Neighbour, ...] = ()
    command_paths: tuple[str, ...] = ()
    metric_folders: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """A clause behind "a checkpoint" on what it looks for: ``that matches step_*.pt in /runs/a``."""
        if self.pattern == LEARNED:
            return f"that is recognised by its content below {self.folder}"
        return f"that matches {self.pattern} in {self.folder}"

    @property
    def real_folder(self) -> Path:
        """The folder's real path now: scripts let a link lead to another folder at each start."""
        return Path(os.path.realpath(self.folder))

    @property
    def home(self) -> Path:
        """The home's real state folder."""
        return Path(os.path.realpath(self.database.parent))

    def listed(self) -> list[FoundCheckpoint]:
        """The checkpoints that are there, newest first. Raises OSError if the folder cannot be read."""
        if self.pattern != LEARNED:
            return list_checkpoints(self.real_folder, self.pattern)
        return written_checkpoints(self.real_folder, self.attempts[0].begun_at, (self.home,))

    def own_folders(self, paths: Collection[str]) -> list[Path]:
        """The folders that the command names and that hold some of these checkpoints."""
        if self.pattern != LEARNED:
            return []
        root = self.real_folder
        folders = []
        for name in self.command_paths:
            # Without a look at them: what a command names may be on a disk that does not answer.
            folder = Path(os.path.normpath(self.folder / name))
            if folder.is_relative_to(self.folder):
                folder = root / folder.relative_to(self.folder)
            if folder != root and folder.is_relative_to(root):
                folders.append(folder)
        return [folder for folder in folders if any(Path(path).is_relative_to(folder) for path in paths)]

    def intruder_at(self, path: str, own_folders: Sequence[Path] = ()) -> str | None:
        """The reason why what appeared at a path may be somebody else's; None if there is none.

        ``own_folders`` are those of its checkpoints, if its command names any.
        """
        if any(Path(path).is_relative_to(folder) for folder in own_folders):
            return None
        if own_folders:
            return f"is not in {own_folders[0].name}, which its command names"
        if self.pattern == LEARNED and any(Path(path).is_relative_to(folder) for folder in self.metric_folders):
            return None
        folder = str(self.real_folder)
        # A run whose checkpoints are found below its working directory says nothing of the folders of others.
        neighbours = self.neighbours
        if self.pattern != LEARNED:
            neighbours = tuple(neighbour for neighbour in neighbours if neighbour.pattern != LEARNED)
        others = (neighbour.run_id for neighbour in neighbours if neighbour.may_have_written(path, folder))
        return next((f"may be of {run_id}, which had the same folder" for run_id in others), None)


class UnmatchedPattern(Struct, frozen=True):
    """No file matches the pattern; ``lookalike`` is a similar one, ``pattern`` a glob for it."""

    lookalike: Path | None = None
    pattern: str | None = None


def surveyed(search: CheckpointSearch, wall: Callable[[], float] = time.time) -> Rows:
    """Scan the folder and return the updated ledger; ``wall`` returns UTC unix seconds.

    Raises:
        OSError: the folder cannot be read.
        StoreError, sqlite3.Error: the metrics cannot be read.
    """
    folder = search.real_folder
    files = {file.path: file for file in search.listed()}
    contents = {row.path: (row.stamp, row.content) for row in search.rows if row.gone_at is None}
    for path in contents.keys() - files.keys():
        # Known ones may lie where the folder was before, or where a person chose one.
        is_elsewhere = not Path(path).is_relative_to(folder)
        if is_elsewhere and (file := measured(Path(path))) is not None:
            files[path] = file
    identified_files = (identified(file, contents) for file in files.values())
    present = [file for file in identified_files if file is not None]
    own_folders = search.own_folders(files.keys())
    with closing(open_reader(search.database)) as connection:
        steps = CheckpointSteps(connection, search.run_id, search.attempts, folder)
        scan = FolderScan(
            now=wall(),
            since=search.since,
            attempts=search.attempts,
            writer=search.writer,
            step_of=steps.step_of,
            may_be_at=steps.may_be_at,
            intruder=partial(search.intruder_at, own_folders=own_folders),
            folder=folder,
        )
        rows = after_scan(search.rows, present, scan)
        ended = search.attempts[-1] if search.attempts else None
        if ended is None or ended.ended_at is None or ended.number != search.writer:
            return rows
        rows = _judge_last_save(rows, ended, search.attempts, steps)
        unsound = steps.unsound_loss(rows, ended.number, step=None)
        return ledger.attempt_ended(rows, search.attempts, ended.number, kind=None, unsound=unsound)


def unsound_loss_of(search: CheckpointSearch, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
    """`CheckpointSteps.unsound_loss` for a search. Raises StoreError or sqlite3.Error."""
    with closing(open_reader(search.database)) as connection:
        steps = CheckpointSteps(connection, search.run_id, search.attempts, search.real_folder)
        return steps.unsound_loss(rows, number, step)


def _judge_last_save(rows: Rows, ended: AttemptSpan, attempts: Spans, steps: CheckpointSteps) -> Rows:
    """Judge the last save of an attempt that has ended: its end may have cut it short, unless the attempt went on.

    Whatever was saved before was left behind by a training that did.
    """
    saves = [row for row in resumable.newest_first(rows) if row.is_written and row.attempt == ended.number]
    if not saves:
        return rows
    newest = saves[0]
    last = {row.path for row in saves if row.place == newest.place or row.is_same_save_as(newest)}
    reason = _cut_reason(newest, rows, ended, attempts, steps)

    def judged(row: CheckpointRow) -> CheckpointRow:
        if row.gone_at is not None or row.attempt != ended.number or not row.is_written:
            return row
        if reason is not None and row.path in last:
            why = f"{reason}; its save may have been cut short"
            return replace(row, verdict="cut", why=why)
        was_quiet = row.saved_at is not None and row.saved_at <= (ended.ended_at or 0.0) - SETTLED_SECONDS
        was_complete = ended.ended_well or was_quiet or row.path not in last
        return replace(row, is_settled=row.is_settled or was_complete or steps.has_gone_on(row))

    return tuple(map(judged, rows))


def _cut_reason(
    save: CheckpointRow, rows: Rows, ended: AttemptSpan, attempts: Spans, steps: CheckpointSteps
) -> str | None:
    """What says that the last save of an attempt was cut short; None if nothing does."""
    if save.verdict in ("cut", "struck"):
        return None
    if not steps.has_stepped(ended.number, save.seen_at):
        lack = _lacking_file(save, rows, ended, attempts)
        if lack is not None:
            return lack
    name = _kept_file(save, rows)
    if name is not None and not steps.has_stepped(ended.number, save.written_at):
        return f"was written over just before its attempt ended, but for {name}"
    return None


def _kept_file(row: CheckpointRow, rows: Rows) -> str | None:
    """A file of a folder that is still of the save before, while others were written over; None if there is none.

    A file that stayed as it was before that, too, is no part of each save.
    """
    at_path = (entry for entry in rows if entry.path == row.path and entry.place < row.place)
    earlier = [entry.content for entry in sorted(at_path, key=lambda entry: entry.place)]
    if row.is_settled or not earlier or not Path(row.path).is_dir():
        return None
    files = kept_files(row.content, earlier[-1])
    if len(earlier) > 1:
        files -= kept_files(earlier[-1], earlier[-2])
    return min(files, default=None)


def _lacking_file(row: CheckpointRow, rows: Rows, ended: AttemptSpan, attempts: Spans) -> str | None:
    """``lacks a file such as rank_0.pt``, if the saves before had one that this one lacks; else None.

    Saves of as many GPUs are compared, whose names differ only in numbers.
    """
    alike = {span.number for span in attempts if span.gpu_count == ended.gpu_count}
    saves: dict[str, Counter[str]] = {}
    for entry in resumable.newest_first(rows):
        if not entry.is_written or entry.attempt not in alike or entry.verdict == "cut":
            continue
        is_comparable = bool(entry.ranks) == bool(row.ranks) and os.path.lexists(entry.path)
        if is_comparable and _shape(entry.name) == _shape(row.name) and len(saves) <= MOST_COMPARED:
            saves[entry.name_of_save] = saves.get(entry.name_of_save, Counter()) + _parts(entry)
    parts = saves.pop(row.name_of_save, Counter())
    for shape in next(iter(saves.values()), Counter()):
        if parts[shape] < min(earlier[shape] for earlier in saves.values()):
            return f"lacks a file such as {shape.replace('#', '0')}"
    return None


def _parts(row: CheckpointRow) -> Counter[str]:
    """The number of files of each shape that a save wrote, in a folder or as the file of a rank."""
    path = Path(row.path)
    if not path.is_dir():
        return Counter([_shape(row.name)])
    with suppress(OSError):
        files = (str(file.relative_to(path)) for file in files_of(path))
        return Counter(_shape(name) for name in files if name.endswith(SAVED_SUFFIXES))
    return Counter()


def _shape(name: str) -> str:
    """The name with each number replaced by ``#``, which is the same in each save."""
    return re.sub(r"\d+", "#", name)


def unmatched(search: CheckpointSearch) -> UnmatchedPattern:
    """Find a file that the run may have saved as a checkpoint although its pattern does not match. Raises OSError.

    It is looked for in the run's folder, or in the nearest parent that exists.
    """
    folder = next(path for path in (search.folder, *search.folder.parents) if path.is_dir())
    begun_at = search.attempts[0].begun_at if search.attempts else 0.0
    saved: list[tuple[float, Path]] = []
    for path in islice(_entries_below(folder), _MOST_ENTRIES):
        is_named = explicit_step(path.name) is not None and path.is_dir()
        if is_named or path.suffix in _LOOKALIKES:
            with suppress(FileNotFoundError):  # a link to nowhere, or gone meanwhile
                saved.append((path.stat().st_mtime, path.relative_to(folder)))
    changed_at, newest = max(saved, default=(0.0, Path()))
    if not saved or changed_at < begun_at:
        return UnmatchedPattern()
    pattern = re.sub(r"\d+", "*", newest.name)
    if len(newest.parts) > 1:
        pattern = f"**/{pattern}"
    return UnmatchedPattern(newest, pattern)


def _entries_below(folder: Path) -> Iterator[Path]:
    """Files and folders down to _MOST_DEPTH, without hidden ones. Raises OSError if ``folder``
    cannot be read."""
    folder.stat()
    for parent, folders, files in os.walk(folder):
        visible = sorted(name for name in (*folders, *files) if not name.startswith("."))
        yield from (Path(parent, name) for name in visible)
        is_deep = len(Path(parent).relative_to(folder).parts) + 1 >= _MOST_DEPTH
        folders[:] = [name for name in sorted(folders) if name in visible and not is_deep]
