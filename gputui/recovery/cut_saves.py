"""Detection of interrupted saves of several files, in a folder or by several ranks: each file may be valid while others
are missing or still from the save before. Only an attempt's last save can be interrupted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec.structs import replace

from gputui.recovery import checkpoint_folders
from gputui.recovery.attempt_steps import AttemptSteps
from gputui.recovery.checkpoint_ledger import candidates_by_age
from gputui.recovery.ledger_inputs import Rows
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow

# File times are those of the kernel's last tick.
TICK_NS = 10_000_000
# Number of older folders with which one is compared.
_MOST_COMPARED = 3


class SavedFile(NamedTuple):
    """A file of a folder. ``shape`` is its path with numbers replaced, which is the same in each save."""

    name: str
    shape: str
    modified_ns: int


class OlderFolder(NamedTuple):
    """A folder that was saved before. ``is_of_attempt``: by the same attempt, and so by the same number of ranks."""

    parts: Sequence[SavedFile]
    is_of_attempt: bool


def marked_if_cut(row: CheckpointRow, rows: Rows, steps: AttemptSteps) -> CheckpointRow:
    """The entry, with the verdict ``cut`` if it is a folder whose save was interrupted by the newest attempt's end.
    Raises OSError."""
    newest = steps.attempts[-1] if steps.attempts else None
    if newest is None or newest.ended_at is None or row.attempt != newest.number or not row.is_written:
        return row
    if row.verdict in ("cut", "struck") or not Path(row.path).is_dir() or not _was_last_act(row, rows, steps):
        return row
    reason = _cut_reason(row, rows, steps)
    return row if reason is None else replace(row, verdict="cut", why=f"{reason}; its save may have been cut short")


def _was_last_act(row: CheckpointRow, rows: Rows, steps: AttemptSteps) -> bool:
    """Whether the newest attempt did no step after it had written a checkpoint."""
    newest, times = steps.attempts[-1], steps.times
    if times.come_with_checkpoints() or times.newest_line(newest.number, math.inf, newest.begun_at) is None:
        saves = [other for other in rows if other.is_written and other.attempt == newest.number]
        return row.write_order == max(save.write_order for save in saves)
    return not steps.has_stepped(newest.number, row.modified_at, math.inf)


def marked_if_ranks_differ(rows: Rows, steps: AttemptSteps) -> Rows:
    """The ledger, with the verdict ``cut`` for the newest attempt's files that ranks write each for itself and that do
    not match those of the other ranks, because the attempt ended between their saves."""
    newest = steps.attempts[-1] if steps.attempts else None
    if newest is None or newest.ended_at is None:
        return rows
    # The number of ranks may differ between attempts.
    comparable = {span.number for span in steps.attempts if span.gpu_count == newest.gpu_count}
    by_save: dict[str, list[CheckpointRow]] = {}
    for row in sorted(rows, key=lambda row: row.write_order, reverse=True):
        if row.is_written and row.attempt in comparable and row.ranks:
            by_save.setdefault(row.name_of_save, []).append(row)
    by_shape: dict[str, list[list[CheckpointRow]]] = {}
    for save, files in by_save.items():
        by_shape.setdefault(shape(save), []).append(files)
    why = {}
    for saves in by_shape.values():
        for files in saves:
            if files[0].attempt == newest.number and all(file.verdict not in ("cut", "struck") for file in files):
                others = [other for other in saves if other is not files and other[0].verdict != "cut"]
                reason = _rank_reason(files, others[:_MOST_COMPARED], rows, steps)
                if reason is not None:
                    why[files[0].path] = f"{reason}; its save may have been cut short"
    return tuple(replace(row, verdict="cut", why=why[row.path]) if row.path in why else row for row in rows)


def _rank_reason(
    files: Sequence[CheckpointRow], others: Sequence[Sequence[CheckpointRow]], rows: Rows, steps: AttemptSteps
) -> str | None:
    """What shows that the files of ranks, newest first, are not of one save, to complete "the checkpoint …"; None if
    nothing does. ``others`` are the files of other saves."""
    newest, oldest = files[0], files[-1]
    if oldest.attempt < newest.attempt:
        return f"lies beside {oldest.name} of attempt {oldest.attempt}"
    is_named = any(explicit_step(name) is not None for name in PurePath(newest.path).parts[-2:])
    has_stepped = steps.has_stepped(newest.attempt, oldest.modified_at, newest.modified_at)
    if has_stepped and not is_named and _was_last_act(newest, rows, steps):
        return f"is more than a step newer than {oldest.name}"
    ranks = [{file.ranks for file in save} for save in others]
    in_all = set.intersection(*ranks) if ranks else set()
    lacked = in_all - {file.ranks for file in files}
    # A single number may be another rank, such as LoRA's.
    if len(in_all) < 2 or not lacked:
        return None
    return f"lacks the file of rank {' '.join(min(lacked))}"


def _cut_reason(row: CheckpointRow, rows: Rows, steps: AttemptSteps) -> str | None:
    """What shows that a folder is not one complete save, to complete "the checkpoint …"; None if nothing does."""
    before_ns = row.before_ns
    parts = parts_of(Path(row.path))
    if (shard := with_old_index(parts)) is not None:
        return f"holds {shard}, which is newer than its .metadata"

    def is_kept(at_ns: int) -> bool:
        assert before_ns is not None
        at, before = at_ns / 1e9, before_ns / 1e9
        writer = next((span for span in reversed(steps.attempts) if span.begun_at <= at), None)
        first_step_at = None if writer is None else steps.times.first_at(writer.number)
        # An attempt has nothing to save before its first step.
        if first_step_at is None or at < first_step_at:
            return True
        return any(steps.has_stepped(span.number, at, before) for span in steps.attempts)

    if before_ns is not None and (old := of_two_saves(parts, before_ns, is_kept)) is not None:
        return f"holds files of two saves, of the earlier one {old}"
    others = [
        other
        for other in candidates_by_age(rows, steps.attempts)
        if other.is_written and other.write_order < row.write_order and shape(other.name) == shape(row.name)
    ]
    folders = [other for other in others if Path(other.path).is_dir()][:_MOST_COMPARED]
    older = [OlderFolder(parts_of(Path(other.path)), other.attempt == row.attempt) for other in folders]
    missing = lacking(parts, older)
    return None if missing is None else f"lacks a file such as {missing}"


def parts_of(path: Path) -> list[SavedFile]:
    """The files of a folder that each save writes. Raises OSError."""
    parts = []
    try:
        files = checkpoint_folders.files_of(path)
    except checkpoint_folders.IncompleteError:
        return []
    for file in files:
        if file.name.endswith(checkpoint_folders.SAVED_SUFFIXES):
            name = str(file.relative_to(path))
            parts.append(SavedFile(name, shape(name), file.stat().st_mtime_ns))
    return parts


def shape(name: str) -> str:
    """The name with each number replaced by ``#``."""
    return re.sub(r"\d+", "#", name)


def of_two_saves(parts: Sequence[SavedFile], before_ns: int, is_kept: Callable[[int], bool]) -> str | None:
    """The oldest file of the previous save, which ended at ``before_ns``, if other files were written since; else None.
    ``is_kept`` says of a file's time whether the file was older in that save already, and so is not part of each
    save."""
    if all(part.modified_ns <= before_ns for part in parts):
        return None
    unsaved = [part for part in parts if part.modified_ns <= before_ns and not is_kept(part.modified_ns)]
    return min(unsaved, key=lambda part: part.modified_ns).name if unsaved else None


def with_old_index(parts: Sequence[SavedFile]) -> str | None:
    """A shard of a distributed checkpoint that is newer than ``.metadata``, which is written last; None if there is
    none."""
    indexes = {Path(part.name).parent: part.modified_ns for part in parts if Path(part.name).name == ".metadata"}
    for part in parts:
        written_ns = indexes.get(Path(part.name).parent)
        if part.name.endswith(".distcp") and written_ns is not None and part.modified_ns > written_ns + TICK_NS:
            return part.name
    return None


def lacking(parts: Sequence[SavedFile], older: Sequence[OlderFolder]) -> str | None:
    """The name of a file that all older folders have and this one lacks; None if there is none. Folders of other
    attempts do not count for numbered files, because the number of ranks may differ."""
    counts = Counter(part.shape for part in parts)
    older_counts = [Counter(part.shape for part in folder.parts) for folder in older]
    for part in older[0].parts if older else ():
        is_ranked = "#" in part.shape
        expected = [
            (older_count[part.shape] if folder.is_of_attempt else 1)
            for folder, older_count in zip(older, older_counts, strict=True)
            if folder.is_of_attempt or not is_ranked
        ]
        is_in_all = all(older_count[part.shape] for older_count in older_counts)
        if is_in_all and expected and counts[part.shape] < min(expected):
            return part.name
    return None
