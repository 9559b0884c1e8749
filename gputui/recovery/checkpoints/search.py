"""Search for checkpoints: scan the folder, update the ledger, and validate candidates. Slow, so the agent does it
in jobs."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.files import (
    SAVED_SUFFIXES,
    TooManyFilesError,
    content_of,
    files_of,
    identified,
    kept_files,
    list_checkpoints,
    measured,
)
from gputui.recovery.checkpoints.formats import CheckpointInfo, validate
from gputui.recovery.checkpoints.ledger import AttemptSpan, FolderScan, Rows, UnsoundLoss, after_scan
from gputui.recovery.checkpoints.steps import CheckpointSteps
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow, Neighbour, Verdict
from gputui.store.database import open_reader

# A file that is unchanged for this long has stopped growing.
SETTLED_SECONDS = 3.0
# After so many damaged candidates the search ends.
MOST_DAMAGED = 1000
# Number of older saves with which the last one is compared.
MOST_COMPARED = 3
_LOOKALIKES = frozenset({".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin", ".pkl", ".npz"})
_MOST_ENTRIES, _MOST_DEPTH = 2000, 5

Validate = Callable[[Path], CheckpointInfo]
IsSame = Callable[[CheckpointRow], bool]


class CheckpointSearch(Struct, frozen=True):
    """Input of a scan and a search.

    Attributes:
        database: the store, read for the times of steps.
        rows: the run's ledger, with what is gone.
        attempts: the run's attempts, oldest first.
        writer: the attempt that lived since the last scan; None if none did.
        since: when that was (UTC unix seconds).
        neighbours: other runs of the home that may have written since.
        intruder: why what appears may be of another home; None if it is not.
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
    intruder: str | None = None

    @property
    def real_folder(self) -> Path:
        """Where the folder is now, with links resolved: scripts let a link lead to another folder at each start."""
        return Path(os.path.realpath(self.folder))

    @property
    def home(self) -> Path:
        """The home's real state folder."""
        return Path(os.path.realpath(self.database.parent))

    def intruder_at(self, path: str) -> str | None:
        """Why what appeared at a path may be of somebody else."""
        if self.intruder is not None:
            return self.intruder
        folder = str(self.real_folder)
        others = (each.run_id for each in self.neighbours if each.may_have_written(path, folder))
        return next((f"may be of {other}, which had the same folder" for other in others), None)


class CheckpointChoice(Struct, frozen=True):
    """The result of a search.

    Attributes:
        rows: the ledger after it.
        usable: the checkpoints to resume from, best first.
        refused: those passed over, newest first.
        unreadable: why some cannot be read now, if none is usable.
        doubted: which one may be another run's or incomplete, if none is usable.
        is_lost: waiting will not make the unreadable ones readable.
        is_seen: the folder was looked into.
    """

    rows: Rows
    usable: tuple[CheckpointInfo, ...] = ()
    refused: tuple[CheckpointInfo, ...] = ()
    unreadable: str | None = None
    doubted: str | None = None
    is_lost: bool = False
    is_seen: bool = True

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


# --- scans ------------------------------------------------------------------------------------------------------------


def surveyed(search: CheckpointSearch, wall: Callable[[], float] = time.time) -> Rows:
    """Scan the folder and return the updated ledger. ``wall`` returns UTC unix seconds. Raises OSError if the
    folder cannot be read, StoreError or sqlite3.Error."""
    folder = search.real_folder
    files = {file.path: file for file in list_checkpoints(folder, search.pattern)}
    for row in search.rows:
        # Known ones may lie where the folder was before, or where a person chose one.
        if row.gone_at is None and row.path not in files and not Path(row.path).is_relative_to(folder):
            file = measured(Path(row.path))
            files |= {} if file is None else {row.path: file}
    known = {row.path: (row.stamp, row.content) for row in search.rows if row.gone_at is None}
    found = [known_file for file in files.values() if (known_file := identified(file, known)) is not None]
    with closing(open_reader(search.database)) as connection:
        steps = CheckpointSteps(connection, search.run_id, search.attempts, folder)
        scan = FolderScan(
            now=wall(),
            since=search.since,
            attempts=search.attempts,
            writer=search.writer,
            step_of=steps.step_of,
            may_be_at=steps.may_be_at,
            intruder=search.intruder_at,
            folder=folder,
        )
        rows = after_scan(search.rows, found, scan)
        ended = search.attempts[-1] if search.attempts and search.attempts[-1].ended_at is not None else None
        if ended is None or ended.number != search.writer:
            return rows
        rows = _last_save_judged(rows, ended, search.attempts, steps)
        trouble = steps.trouble(rows, ended.number, None)
        return ledger.attempt_ended(rows, search.attempts, ended.number, None, trouble)


def trouble_of(search: CheckpointSearch, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
    """What the metrics tell of an attempt whose loss was bad since ``step``, or in the end; None if it was not. Raises
    StoreError or sqlite3.Error."""
    with closing(open_reader(search.database)) as connection:
        steps = CheckpointSteps(connection, search.run_id, search.attempts, search.real_folder)
        return steps.trouble(rows, number, step)


def is_unchanged(row: CheckpointRow) -> bool:
    """Whether the checkpoint is still at its place."""
    file = measured(Path(row.path))
    try:
        return file is not None and (file.stamp == row.stamp or content_of(Path(row.path)) == row.content)
    except OSError:
        return False


def _last_save_judged(rows: Rows, ended: AttemptSpan, attempts: Sequence[AttemptSpan], steps: CheckpointSteps) -> Rows:
    """The ledger with the last save of an attempt that has ended judged: its end may have cut it short. Whatever was
    saved before was left behind by a training that went on."""
    own = [row for row in ledger.newest_first(rows) if row.is_written and row.attempt == ended.number]
    if not own:
        return rows
    last = [row for row in own if row.seen == own[0].seen or row.is_with(own[0])]
    marks: dict[str, CheckpointRow] = {}
    if not steps.has_stepped(ended.number, own[0].seen_at) and own[0].verdict not in ("cut", "struck"):
        reason = _lacking_rank(last, own, rows, ended, attempts) if own[0].ranks else _lacking_file(own[0], rows)
        if reason is None and (name := _kept_file(own[0], rows)) is not None:
            is_followed = own[0].saved_at is not None and steps.has_stepped(ended.number, own[0].saved_at)
            reason = None if is_followed else f"was written over just before its attempt ended, but for {name}"
        if reason is not None:
            why = f"{reason}; its save may have been cut short"
            marks = {row.path: replace(row, verdict="cut", why=why) for row in last}
    paths = {row.path for row in last}
    for row in own:
        was_quiet = row.saved_at is not None and row.saved_at <= (ended.ended_at or 0.0) - SETTLED_SECONDS
        if not row.is_settled and (row.path not in paths or was_quiet):
            marks.setdefault(row.path, replace(row, is_settled=True))
    return tuple(marks.get(row.path, row) if row.gone_at is None else row for row in rows)


def _kept_file(row: CheckpointRow, rows: Rows) -> str | None:
    """A file of a folder that is still of the save before, while others were written over; None if there is none. What
    stayed as it was before that too is no part of each save."""
    earlier = sorted((each.seen, each.content) for each in rows if each.path == row.path and each.seen < row.seen)
    if row.is_settled or not earlier or not Path(row.path).is_dir():
        return None
    kept = kept_files(row.content, earlier[-1][1])
    kept -= kept_files(earlier[-1][1], earlier[-2][1]) if len(earlier) > 1 else set()
    return min(kept).rsplit(" ", 2)[0] if kept else None


def _lacking_file(row: CheckpointRow, rows: Rows) -> str | None:
    """A file that older folders of this kind have and this one lacks, to complete "the checkpoint …"; None if there is
    none. A numbered file is compared with folders of the same attempt, because the number of ranks may differ."""
    if not Path(row.path).is_dir():
        return None
    parts = _parts(row.path)
    earlier = (other for other in ledger.newest_first(rows) if other.is_written and other.seen < row.seen)
    alike = [other for other in earlier if _shape(other.name) == _shape(row.name) and Path(other.path).is_dir()]
    older = [(other, _parts(other.path)) for other in alike[:MOST_COMPARED]]
    for shape in older[0][1] if older else ():
        counts = [found[shape] for other, found in older if "#" not in shape or other.attempt == row.attempt]
        if all(found[shape] for _, found in older) and counts and parts[shape] < min(counts):
            return f"lacks a file such as {shape.replace('#', '0')}"
    return None


def _lacking_rank(
    last: Sequence[CheckpointRow],
    own: Sequence[CheckpointRow],
    rows: Rows,
    ended: AttemptSpan,
    attempts: Sequence[AttemptSpan],
) -> str | None:
    """A rank whose file the saves before had, and this one lacks, to complete "the checkpoint …"; None if none is."""
    comparable = {span.number for span in attempts if span.gpu_count == ended.gpu_count}
    shape = _shape(last[0].name_of_save)
    saves: dict[str, set[tuple[str, ...]]] = {}
    for row in ledger.newest_first(rows):
        is_comparable = row.is_written and row.attempt in comparable and row.verdict != "cut"
        if is_comparable and row.name_of_save != last[0].name_of_save and _shape(row.name_of_save) == shape:
            saves.setdefault(row.name_of_save, set()).add(row.ranks)
    in_all = set.intersection(*list(saves.values())[:MOST_COMPARED]) if saves else set()
    lacked = in_all - {row.ranks for row in last}
    # A single number may be another rank, such as LoRA's.
    return f"lacks the file of rank {' '.join(min(lacked))}" if len(in_all) > 1 and lacked else None


def _parts(path: str) -> Counter[str]:
    """How many files of each shape a save writes into a folder."""
    try:
        names = (str(file.relative_to(path)) for file in files_of(Path(path)) if file.name.endswith(SAVED_SUFFIXES))
        return Counter(_shape(name) for name in names)
    except (OSError, TooManyFilesError):
        return Counter()


def _shape(name: str) -> str:
    """The name with each number replaced by ``#``, which is the same in each save."""
    return re.sub(r"\d+", "#", name)


def unmatched(search: CheckpointSearch) -> UnmatchedPattern:
    """Find a file that the run may have saved as a checkpoint although its pattern does not match, in its folder or the
    nearest existing parent. Raises OSError if that cannot be read."""
    folder = next(path for path in (search.folder, *search.folder.parents) if path.is_dir())
    begun_at = search.attempts[0].begun_at if search.attempts else 0.0
    found = islice(_entries_below(folder, _MOST_DEPTH), _MOST_ENTRIES)
    named = (path for path in found if path.suffix in _LOOKALIKES or explicit_step(path.name) is not None)
    alike = (measured(path) for path in named if path.suffix in _LOOKALIKES or path.is_dir())
    saved = [file for file in alike if file is not None and file.modified_ns / 1e9 >= begun_at]
    if not saved:
        return UnmatchedPattern()
    newest = Path(max(saved, key=lambda file: file.modified_ns).path)
    relative = newest.relative_to(folder)
    name = re.sub(r"\d+", "*", newest.name)
    return UnmatchedPattern(relative, f"**/{name}" if len(relative.parts) > 1 else name)


def _entries_below(folder: Path, depth: int) -> Iterator[Path]:
    """Files and folders down to a depth, without hidden ones."""
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        yield path
        if depth > 1 and path.is_dir() and not path.is_symlink():
            yield from _entries_below(path, depth - 1)


# --- choices ----------------------------------------------------------------------------------------------------------


def choose(
    rows: Sequence[CheckpointRow],
    attempts: Sequence[AttemptSpan],
    wanted: int,
    check: Validate = validate,
    folder: Path | None = None,
    is_same: IsSame = is_unchanged,
) -> CheckpointChoice:
    """Validate candidates, best first, until ``wanted`` of them are whole.

    Formats that cannot be checked come after whole ones. Among them, files that may have been growing at the end count
    only if there is nothing else, like doubtful ones. If ``folder``, where the run saves, is empty or missing, its file
    system may be away: known checkpoints then count as unreadable. So does one that is missing where the folder was
    before, and one that a person chose and that is missing or was written over since.
    """
    updated = {(row.path, row.seen): row for row in rows}
    validation = _Validation()
    failed_starts = 0
    for row in ledger.candidates(rows, attempts):
        if row.failed_starts > failed_starts and validation.usable():
            break
        if row.content in validation.contents:
            continue
        failed_starts = row.failed_starts
        info = _checked_save(row, rows, check, is_same)
        validation.add(row, info)
        if not info.is_unreadable and row.verdict != "doubtful":
            verdict: Verdict = "valid" if info.valid else "unexamined" if info.is_unknown else "invalid"
            updated[row.path, row.seen] = replace(row, verdict=verdict, why=info.why)
        if len(validation.whole) >= wanted or len(validation.damaged) > MOST_DAMAGED:
            break
    usable = validation.usable()
    rows = tuple(updated.values())
    refused = _refused(rows, attempts, usable, validation.damaged)
    if usable:
        return CheckpointChoice(rows, usable, refused)
    unreadable, lost_choice = validation.unreadable, validation.lost_choice
    if lost_choice is None and (lost := ledger.lost_choice(rows, attempts)) is not None:
        lost_choice = _choose_another(*lost)
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
        contents: what of these is there already: a copy is no other checkpoint.
    """

    whole: list[CheckpointInfo] = field(default_factory=list)
    unknown: list[CheckpointInfo] = field(default_factory=list)
    unsettled: list[CheckpointInfo] = field(default_factory=list)
    damaged: list[CheckpointInfo] = field(default_factory=list)
    missing: list[CheckpointRow] = field(default_factory=list)
    unreadable: str | None = None
    lost_choice: str | None = None
    contents: set[str] = field(default_factory=set)

    def add(self, row: CheckpointRow, info: CheckpointInfo) -> None:
        if info.is_unreadable and not info.is_missing:
            self.unreadable = self.unreadable or f"{row.name} {info.why}"
        if info.is_missing and row.is_written and row.verdict != "invalid":
            self.missing.append(row)
        if row.origin == "named" and (info.is_missing or info.is_replaced):
            self.lost_choice = self.lost_choice or _choose_another(row, "is gone" if info.is_missing else info.why)
        if info.valid or info.is_unknown:
            self.contents.add(row.content)
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


def _checked(row: CheckpointRow, check: Validate, is_same: IsSame) -> CheckpointInfo:
    """The result of a check; a file that has changed since the scan is not the checkpoint of ``row``."""
    info = replace(check(Path(row.path)), step=row.step, seen=row.seen)
    if not info.is_unreadable and not is_same(row):
        return replace(info, valid=False, is_unknown=False, is_replaced=True, why="was written over meanwhile")
    return info


def _checked_save(
    row: CheckpointRow, rows: Sequence[CheckpointRow], check: Validate, is_same: IsSame
) -> CheckpointInfo:
    """The same for a checkpoint with the files that other ranks wrote in its save."""
    info = _checked(row, check, is_same)
    if not row.is_written or not row.ranks:
        return info
    parts = (part for part in rows if part.path != row.path and part.is_written and part.gone_at is None)
    for part in (part for part in parts if part.is_with(row)):
        if (info.valid or info.is_unknown) and not (found := _checked(part, check, is_same)).valid:
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
            if not any(not entry.name.startswith(".gputui") for entry in entries):
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
    best = usable[0].seen if usable else 0
    for row, why in ledger.refused(rows, attempts):
        if row.path not in usable_paths and row.seen > best:
            reasons.setdefault(row.path, why)
    left = (row for row in ledger.newest_first(rows) if row.path in reasons)
    return tuple(
        CheckpointInfo(Path(row.path), row.step, False, reasons[row.path], row.size_bytes, row.seen) for row in left
    )


def for_person(
    search: CheckpointSearch, path: Path | None, check: Validate = validate, wall: Callable[[], float] = time.time
) -> CheckpointChoice:
    """Choose the best checkpoint for a person who resumes a run, or the one at ``path``, or where that leads to as a
    link: it may lead elsewhere later. Raises NotUsableError if that one cannot be used, and what `surveyed` raises."""
    if path is None:
        return choose(surveyed(search, wall), search.attempts, 1, check, search.folder)
    rows = surveyed(search, wall)
    real = Path(os.path.realpath(path))
    file, info = measured(real), check(real)
    if file is None or not (info.valid or info.is_unknown) or (file := identified(file, {})) is None:
        text = f"{path} {info.why or 'is neither a file nor a folder'}; name another checkpoint"
        raise NotUsableError(text, may_pass=info.is_unreadable and not info.is_missing)
    step = next((row.step for row in rows if row.content == file.content), None)
    if step is None:
        step = step_in_name(real, search.real_folder)
    rows = ledger.chosen_by_person(rows, search.attempts, file, step, wall())
    return CheckpointChoice(rows, (replace(info, valid=True, step=step),))


def passed_over(refused: Sequence[CheckpointInfo], most: int = 3) -> str:
    """``step_90.pt was written after the trouble began at step 50; 2 more``; "" for none."""
    shown = [f"{info.path.name} {info.why}" for info in refused[:most]]
    more = len(refused) - len(shown)
    return "; ".join([*shown, f"{count(more)} more"] if more > 0 else shown)
