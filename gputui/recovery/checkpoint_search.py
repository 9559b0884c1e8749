"""Search for checkpoints: scan the folder, update the ledger, and validate candidates. Slow, so the agent does it in
jobs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_writers
from gputui.recovery.attempt_steps import AttemptSteps
from gputui.recovery.checkpoint_contents import has_same_content, steps_inside
from gputui.recovery.checkpoint_scan import ScanContext, after_scan
from gputui.recovery.checkpoints import MOST_FOUND, CheckpointInfo, look_in, measured, validate
from gputui.recovery.cut_saves import marked_if_cut, marked_if_ranks_differ
from gputui.recovery.ledger_inputs import AttemptSpan, CheckpointSearch, FoundCheckpoint, Rows
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow, Verdict
from gputui.store.database import open_reader
from gputui.store.metrics.step_times import StepTimes

# After so many damaged candidates the search ends.
MOST_DAMAGED = 1000
_SAVED_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin", ".pkl", ".npz"})
_MOST_ENTRIES, _MOST_DEPTH = 2000, 5

Validate = Callable[[Path], CheckpointInfo]
Measure = Callable[[Path], FoundCheckpoint | None]


class CheckpointChoice(Struct, frozen=True):
    """The result of a search.

    Attributes:
        rows: the ledger after it.
        usable: the checkpoints to resume from, best first.
        refused: those passed over, newest first.
        unreadable: why some cannot be read now, if none is usable.
        doubted: which one may be another run's or incomplete, if none is usable.
        is_lost: waiting will not make the unreadable ones readable.
    """

    rows: Rows
    usable: tuple[CheckpointInfo, ...] = ()
    refused: tuple[CheckpointInfo, ...] = ()
    unreadable: str | None = None
    doubted: str | None = None
    is_lost: bool = False

    @property
    def infos(self) -> list[CheckpointInfo]:
        """All checkpoints, as `decide` expects them."""
        return [*self.usable, *self.refused]


class UnmatchedPattern(Struct, frozen=True):
    """No file of the run matches its pattern. ``lookalike`` is a similar file, ``pattern`` a glob that matches it; None
    if there is none."""

    lookalike: Path | None = None
    pattern: str | None = None


class NotUsableError(Exception):
    """A checkpoint that a person named cannot be used; the message says why. ``may_pass``: it cannot be read now."""

    def __init__(self, text: str, *, may_pass: bool) -> None:
        super().__init__(text)
        self.may_pass = may_pass


def surveyed(search: CheckpointSearch, wall: Callable[[], float] = time.time) -> Rows:
    """Scan the folder and return the updated ledger. ``wall`` returns UTC unix seconds. Raises OSError if the folder
    cannot be read, StoreError or sqlite3.Error."""
    folder = search.real_folder
    files = look_in(folder, search.pattern)
    # Known checkpoints may be beyond the limit, or where the folder was before, so they are looked up by path.
    found = {file.path for file in files}
    missing = [row for row in search.rows if row.is_written and row.path not in found]
    if len(files) < MOST_FOUND:
        missing = [row for row in missing if not Path(row.path).is_relative_to(folder)]
    paths = ((row, Path(row.path)) for row in missing)
    missing = [row for row, path in paths if str(path.parent.resolve() / path.name) not in found]
    files += [file for row in missing if (file := measured(Path(row.path))) is not None]
    now = wall()
    foreign = checkpoint_writers.others(
        search.home, search.run_id, search.attempts, folder, (file.path for file in files), now
    )
    own_home = (neighbour.in_folder(str(search.folder), str(folder)) for neighbour in search.neighbours)
    with closing(open_reader(search.database)) as connection:
        steps = AttemptSteps(StepTimes(connection, search.run_id), search.attempts)
        context = ScanContext(
            attempts=search.attempts,
            now=now,
            recorded_step=steps.recorded_step,
            latest_step=steps.latest_step,
            has_stepped=steps.has_stepped,
            steps_inside=lambda path: steps_inside(Path(path)),
            has_same_content=lambda path, other: has_same_content(Path(path), Path(other)),
            folder=folder,
            neighbours=(*own_home, *foreign),
            rebuilt=search.rebuilt,
        )
        rows = after_scan(search.rows, files, context)
        rows = tuple(marked_if_cut(row, rows, steps) for row in rows)
        rows = marked_if_ranks_differ(rows, steps)
    return rows if search.rows else ledger.replayed(rows, search.attempts, search.incidents)


def is_unchanged(row: CheckpointRow) -> bool:
    """Whether a checkpoint is unchanged since its row was written."""
    now = measured(Path(row.path))
    return now is not None and now.has_stamp(row.stamp)


def unmatched(search: CheckpointSearch) -> UnmatchedPattern:
    """Find a file that the run may have saved as a checkpoint although its pattern does not match, in its folder or the
    nearest existing parent. Raises OSError if that cannot be read."""
    folder = next(path for path in (search.folder, *search.folder.parents) if path.is_dir())
    begun_at = search.attempts[0].begun_at if search.attempts else 0.0
    saved: list[FoundCheckpoint] = []
    for path in islice(_entries_below(folder, _MOST_DEPTH), _MOST_ENTRIES):
        if path.suffix in _SAVED_SUFFIXES or (explicit_step(path.name) is not None and path.is_dir()):
            file = measured(path)
            if file is not None and file.modified_at >= begun_at:
                saved.append(file)
    if not saved:
        return UnmatchedPattern()
    newest = Path(max(saved, key=lambda file: file.modified_ns).path)
    relative = newest.relative_to(folder)
    name = re.sub(r"\d+", "*", newest.name)
    return UnmatchedPattern(relative, f"**/{name}" if len(relative.parts) > 1 else name)


def _entries_below(folder: Path, depth: int) -> Iterator[Path]:
    """Files and folders down to a depth, without hidden ones."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        yield path
        if depth > 1 and path.is_dir() and not path.is_symlink():
            yield from _entries_below(path, depth - 1)


def choose(
    rows: Sequence[CheckpointRow],
    attempts: Sequence[AttemptSpan],
    wanted: int,
    check: Validate = validate,
    folder: Path | None = None,
    measure: Measure = measured,
) -> CheckpointChoice:
    """Validate candidates, best first, until ``wanted`` of them are whole.

    Formats that cannot be checked come after whole ones. Among them, files that may have been growing at the end count
    only if there is nothing else, like doubtful ones. If ``folder``, where the run saves, is empty or missing, its file
    system may be away: known checkpoints then count as unreadable. So does one that is missing where the folder was
    before, and one that a person chose and that is missing or was written over since.
    """
    updated = {row.path: row for row in rows}
    validation = _Validation()
    failed_starts = 0
    for row in ledger.candidates(rows, attempts):
        if row.failed_starts > failed_starts and validation.usable():
            break
        failed_starts = row.failed_starts
        info = _checked_save(row, rows, check, measure)
        validation.add(row, info)
        if not info.is_unreadable and row.verdict != "doubtful":
            verdict: Verdict = "valid" if info.valid else "unexamined" if info.is_unknown else "invalid"
            updated[row.path] = replace(row, verdict=verdict, why=info.why)
        if len(validation.whole) >= wanted or len(validation.damaged) > MOST_DAMAGED:
            break
    usable = validation.usable()
    rows = tuple(updated.values())
    refused = _refused(rows, attempts, usable, validation.damaged)
    if usable:
        return CheckpointChoice(rows, usable, refused)
    unreadable, lost_choice = validation.unreadable, validation.lost_choice
    if lost_choice is None and (chosen := ledger.unloadable_choice(rows, attempts)) is not None:
        lost_choice = _choose_another(chosen, chosen.why)
    if unreadable is None and validation.missing and folder is not None:
        unreadable = _without_content(folder, validation.missing)
    doubted = ledger.newest_uncertain(rows, attempts)
    return CheckpointChoice(
        rows,
        refused=refused,
        unreadable=unreadable or lost_choice,
        doubted=None if doubted is None else f"{doubted.name} {doubted.why}",
        is_lost=unreadable is None and lost_choice is not None,
    )


@dataclass(slots=True)
class _Validation:
    """Validated candidates.

    Attributes:
        unknown: those whose format cannot be checked, and that stopped growing.
        unsettled: those whose format cannot be checked, and that may have been growing at the end.
        damaged: those that are not whole, and the unsettled ones.
        missing: those that the run wrote and that are gone.
        unreadable: the best one that cannot be read now, with the reason.
        lost_choice: the best one that a person chose and that is gone or was written over, with the remedy.
    """

    whole: list[CheckpointInfo] = field(default_factory=list)
    unknown: list[CheckpointInfo] = field(default_factory=list)
    unsettled: list[CheckpointInfo] = field(default_factory=list)
    damaged: list[CheckpointInfo] = field(default_factory=list)
    missing: list[CheckpointRow] = field(default_factory=list)
    unreadable: str | None = None
    lost_choice: str | None = None

    def add(self, row: CheckpointRow, info: CheckpointInfo) -> None:
        if info.is_unreadable and not info.is_missing:
            self.unreadable = self.unreadable or f"{row.name} {info.why}"
        if info.is_missing and row.is_written and row.verdict != "invalid":
            self.missing.append(row)
        if row.origin == "named" and (info.is_missing or info.is_replaced):
            self.lost_choice = self.lost_choice or _choose_another(row, "is gone" if info.is_missing else info.why)
        if info.valid:
            self.whole.append(info)
        elif info.is_unknown and row.is_settled:
            why = "has a format that cannot be checked, and stopped growing"
            self.unknown.append(replace(info, valid=True, why=why))
        elif info.is_unknown:
            self.unsettled.append(replace(info, valid=True, why="has a format that cannot be checked"))
            self.damaged.append(info)
        else:
            self.damaged.append(info)

    def usable(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints to resume from, best first. An unsettled one is tried if there is no other: an attempt that
        cannot load it loses less than a start from scratch that overwrites it."""
        return tuple(self.whole + self.unknown or self.unsettled[:1])


def _checked(row: CheckpointRow, check: Validate, measure: Measure) -> CheckpointInfo:
    """The result of a check; a file that has changed since the scan is not the checkpoint of ``row``."""
    path = Path(row.path)
    info = replace(check(path), step=row.step)
    file = measure(path)
    if file is not None and not file.has_stamp(row.stamp):
        return replace(info, valid=False, is_unknown=False, is_replaced=True, why="was written over meanwhile")
    return info


def _checked_save(
    row: CheckpointRow, rows: Sequence[CheckpointRow], check: Validate, measure: Measure
) -> CheckpointInfo:
    """The same for a checkpoint with the files that other ranks wrote in its save."""
    info = _checked(row, check, measure)
    if not row.is_written or not row.ranks:
        return info
    for part in rows:
        if part.path != row.path and part.is_written and part.is_with(row) and (info.valid or info.is_unknown):
            found = _checked(part, check, measure)
            if not found.valid:
                why = f"belongs to {part.name}, which {found.why}"
                is_unreadable = found.is_unreadable and not found.is_missing
                info = replace(info, valid=False, why=why, is_unknown=found.is_unknown, is_unreadable=is_unreadable)
    return info


def _choose_another(row: CheckpointRow, why: str) -> str:
    return f"{row.name}, which a person chose, {why}: gputui resume --from PATH chooses another"


def _without_content(folder: Path, missing: Sequence[CheckpointRow]) -> str | None:
    """A message if the folder that had the missing checkpoints is empty or gone, or was another one; else None."""
    try:
        with os.scandir(folder) as entries:
            is_used = any(not entry.name.startswith(checkpoint_writers.PREFIX) for entry in entries)
            if not is_used:
                return f"{folder} is empty, and {missing[0].name} was in it"
    except OSError as error:
        return f"{folder}, where {missing[0].name} was: {error.strerror or error}"
    real = os.path.realpath(folder)
    elsewhere = next((row for row in missing if not Path(row.path).is_relative_to(real)), None)
    return None if elsewhere is None else f"{elsewhere.path} is gone, and {folder} is another folder now"


def _refused(
    rows: Rows, attempts: Sequence[AttemptSpan], usable: Sequence[CheckpointInfo], damaged: Sequence[CheckpointInfo]
) -> tuple[CheckpointInfo, ...]:
    """The checkpoints that are passed over: those newer than the first usable one, and damaged ones."""
    usable_paths = {str(info.path) for info in usable}
    reasons = {str(info.path): info.why for info in damaged if str(info.path) not in usable_paths}
    best = next((row for row in rows if usable and row.path == str(usable[0].path)), None)
    for row, why in ledger.refused(rows, attempts):
        if row.path not in usable_paths and (best is None or row.write_order > best.write_order):
            reasons.setdefault(row.path, why)
    newest_first = sorted((row for row in rows if row.path in reasons), key=lambda row: row.write_order, reverse=True)
    return tuple(
        CheckpointInfo(Path(row.path), row.step, False, reasons[row.path], row.size_bytes, row.modified_at)
        for row in newest_first
    )


def for_person(search: CheckpointSearch, path: Path | None, check: Validate = validate) -> CheckpointChoice:
    """Choose the best checkpoint for a person who resumes a run, or the one at ``path``, or where that leads to as a
    link: it may lead elsewhere later. Raises NotUsableError if that one cannot be used, and what `surveyed` raises."""
    if path is None:
        return choose(surveyed(search), search.attempts, 1, check, search.folder)
    rows = surveyed(search)
    real = Path(os.path.realpath(path))
    file, info = measured(real), check(real)
    if file is None or not (info.valid or info.is_unknown):
        text = f"{path} {info.why or 'is neither a file nor a folder'}; name another checkpoint"
        raise NotUsableError(text, may_pass=info.is_unreadable and not info.is_missing)
    step = next((row.step for row in rows if row.path == file.path), None)
    if step is None:
        step = step_in_name(real, search.real_folder)
    rows = ledger.chosen_by_person(rows, search.attempts, file, step, time.time())
    return CheckpointChoice(rows, (replace(info, valid=True, step=step),))


def passed_over(refused: Sequence[CheckpointInfo], most: int = 3) -> str:
    """``step_90.pt was written after the trouble began at step 50; 2 more``; "" for none."""
    shown = [f"{info.path.name} {info.why}" for info in refused[:most]]
    more = len(refused) - len(shown)
    return "; ".join([*shown, f"{count(more)} more"] if more > 0 else shown)
