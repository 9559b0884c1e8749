"""Search for checkpoints: scan the folder, update the ledger, validate candidates, and remove old
ones. Slow, so the agent does it in jobs."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.files import (
    SAVED_SUFFIXES,
    content_of,
    files_of,
    identified,
    kept_files,
    list_checkpoints,
    measured,
)
from gputui.recovery.checkpoints.formats import CheckpointInfo, validate
from gputui.recovery.checkpoints.ledger import AnyRows, AttemptSpan, Rows, Spans, UnsoundLoss
from gputui.recovery.checkpoints.scans import CheckpointSteps, FolderScan, after_scan
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow, Neighbour, Verdict
from gputui.store.database import open_reader

# A file that is unchanged for this long has stopped growing.
SETTLED_SECONDS = 3.0
# After so many damaged candidates the search ends.
MOST_DAMAGED = 1000
MOST_SHOWN = 3  # passed over
# Number of older saves with which the last one is compared.
MOST_COMPARED = 3
_LOOKALIKES = frozenset({".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin", ".pkl", ".npz"})
_MOST_ENTRIES = 2000

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

    @property
    def real_folder(self) -> Path:
        """Where the folder is now: scripts let a link lead to another folder at each start."""
        return Path(os.path.realpath(self.folder))

    @property
    def home(self) -> Path:
        """The home's real state folder."""
        return Path(os.path.realpath(self.database.parent))

    def intruder_at(self, path: str) -> str | None:
        """Why what appeared at a path may be of somebody else."""
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
    """No file matches the pattern; ``lookalike`` is a similar one, ``pattern`` a glob for it."""

    lookalike: Path | None = None
    pattern: str | None = None


class NotUsableError(Exception):
    """A named checkpoint cannot be used; ``may_pass``: it cannot be read now."""

    def __init__(self, text: str, *, may_pass: bool) -> None:
        super().__init__(text)
        self.may_pass = may_pass


# --- scans ------------------------------------------------------------------------------------


def surveyed(search: CheckpointSearch, wall: Callable[[], float] = time.time) -> Rows:
    """Scan the folder and return the updated ledger. ``wall`` returns UTC unix seconds. Raises
    OSError if the folder cannot be read, StoreError or sqlite3.Error."""
    folder = search.real_folder
    files = {file.path: file for file in list_checkpoints(folder, search.pattern)}
    known = {row.path: (row.stamp, row.content) for row in search.rows if row.gone_at is None}
    for path in known.keys() - files.keys():
        # Known ones may lie where the folder was before, or where a person chose one.
        is_elsewhere = not Path(path).is_relative_to(folder)
        if is_elsewhere and (file := measured(Path(path))) is not None:
            files[path] = file
    found = [each for file in files.values() if (each := identified(file, known)) is not None]
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
        ended = search.attempts[-1] if search.attempts else None
        if ended is None or ended.ended_at is None or ended.number != search.writer:
            return rows
        rows = _last_save_judged(rows, ended, search.attempts, steps)
        trouble = steps.trouble(rows, ended.number, None)
        return ledger.attempt_ended(rows, search.attempts, ended.number, None, trouble)


def trouble_of(search: CheckpointSearch, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
    """`CheckpointSteps.trouble` for a search. Raises StoreError or sqlite3.Error."""
    with closing(open_reader(search.database)) as connection:
        steps = CheckpointSteps(connection, search.run_id, search.attempts, search.real_folder)
        return steps.trouble(rows, number, step)


def is_unchanged(row: CheckpointRow) -> bool:
    """Whether the checkpoint is still at its place."""
    path = Path(row.path)
    file = measured(path)
    try:
        return file is not None and (file.stamp == row.stamp or content_of(path) == row.content)
    except OSError:
        return False


def _last_save_judged(rows: Rows, ended: AttemptSpan, attempts: Spans, steps: CheckpointSteps) -> Rows:
    """The ledger with the last save of an attempt that has ended judged: its end may have cut it
    short. Whatever was saved before was left behind by a training that went on."""
    own = [row for row in ledger.newest_first(rows) if row.is_written and row.attempt == ended.number]
    if not own:
        return rows
    last = {row.path for row in own if row.seen == own[0].seen or row.is_same_save_as(own[0])}
    reason = None
    if own[0].verdict not in ("cut", "struck"):
        if not steps.has_stepped(ended.number, own[0].seen_at):
            reason = _lacking_file(own[0], rows, ended, attempts)
        if reason is None and (name := _kept_file(own[0], rows)) is not None:
            since = own[0].seen_at if own[0].saved_at is None else own[0].saved_at
            if not steps.has_stepped(ended.number, since):
                reason = f"was written over just before its attempt ended, but for {name}"

    def judged(row: CheckpointRow) -> CheckpointRow:
        if row.gone_at is not None or row.attempt != ended.number or not row.is_written:
            return row
        if reason is not None and row.path in last:
            why = f"{reason}; its save may have been cut short"
            return replace(row, verdict="cut", why=why)
        was_quiet = row.saved_at is not None and (row.saved_at <= (ended.ended_at or 0.0) - SETTLED_SECONDS)
        return replace(row, is_settled=row.is_settled or was_quiet or row.path not in last)

    return tuple(map(judged, rows))


def _kept_file(row: CheckpointRow, rows: Rows) -> str | None:
    """A file of a folder that is still of the save before, while others were written over; None if
    there is none. What stayed as it was before that too is no part of each save."""
    at_path = (each for each in rows if each.path == row.path and each.seen < row.seen)
    earlier = [each.content for each in sorted(at_path, key=lambda each: each.seen)]
    if row.is_settled or not earlier or not Path(row.path).is_dir():
        return None
    kept = kept_files(row.content, earlier[-1])
    kept -= kept_files(earlier[-1], earlier[-2]) if len(earlier) > 1 else set()
    return min(kept).rsplit(" ", 2)[0] if kept else None


def _lacking_file(row: CheckpointRow, rows: Rows, ended: AttemptSpan, attempts: Spans) -> str | None:
    """A file, or one of a rank, that the saves before had and this one lacks, to complete "the
    checkpoint …"; None if there is none. Saves of as many GPUs are compared, whose names differ
    only in numbers."""
    alike = {span.number for span in attempts if span.gpu_count == ended.gpu_count}
    saves: dict[str, Counter[str]] = {}
    for each in ledger.newest_first(rows):
        if not each.is_written or each.attempt not in alike or each.verdict == "cut":
            continue
        name = each.name_of_save if each.ranks else each.path
        is_rank = bool(each.ranks) == bool(row.ranks)
        if is_rank and _shape(each.name) == _shape(row.name) and len(saves) <= MOST_COMPARED:
            saves[name] = saves.get(name, Counter()) + _parts(each)
    parts = saves.pop(row.name_of_save if row.ranks else row.path, Counter())
    for shape in next(iter(saves.values()), Counter()):
        if parts[shape] < min(found[shape] for found in saves.values()):
            return f"lacks a file such as {shape.replace('#', '0')}"
    return None


def _parts(row: CheckpointRow) -> Counter[str]:
    """How many files of each shape a save wrote, in a folder or as the file of a rank."""
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
    """Find a file that the run may have saved as a checkpoint although its pattern does not match,
    in its folder or the nearest existing parent. Raises OSError if that cannot be read."""
    folder = next(path for path in (search.folder, *search.folder.parents) if path.is_dir())
    begun_at = search.attempts[0].begun_at if search.attempts else 0.0
    saved: list[tuple[float, Path]] = []
    for path in islice(folder.rglob("[!.]*"), _MOST_ENTRIES):
        is_named = explicit_step(path.name) is not None and path.is_dir()
        if is_named or path.suffix in _LOOKALIKES:
            saved.append((path.stat().st_mtime, path.relative_to(folder)))
    changed_at, newest = max(saved, default=(0.0, Path()))
    if not saved or changed_at < begun_at:
        return UnmatchedPattern()
    name = re.sub(r"\d+", "*", newest.name)
    return UnmatchedPattern(newest, f"**/{name}" if len(newest.parts) > 1 else name)


# --- choices ----------------------------------------------------------------------------------


def choose(
    rows: AnyRows,
    attempts: Spans,
    wanted: int,
    check: Validate = validate,
    folder: Path | None = None,
    is_same: IsSame = is_unchanged,
) -> CheckpointChoice:
    """Validate candidates, best first, until ``wanted`` of them are whole.

    Formats that cannot be checked come after whole ones. Among them, files that may have been
    growing at the end count only if there is nothing else, like doubtful ones. If ``folder``, where
    the run saves, is empty or missing, its file system may be away: known checkpoints then count as
    unreadable. So does one that is missing where the folder was before, and one that a person chose
    and that is missing or was written over since.
    """
    updated = {(row.path, row.seen): row for row in rows}
    whole: list[CheckpointInfo] = []
    unknown: list[CheckpointInfo] = []  # of a format that cannot be checked
    unsettled: list[CheckpointInfo] = []  # the same, and it may have been growing
    damaged: list[CheckpointInfo] = []
    missing: list[CheckpointRow] = []
    contents: set[str] = set()
    unreadable: str | None = None
    lost: tuple[CheckpointRow, str] | None = None
    failed_starts = 0
    for row in ledger.candidates(rows, attempts):
        if row.failed_starts > failed_starts and (whole or unknown or unsettled):
            break
        if row.content in contents:
            continue
        failed_starts = row.failed_starts
        info = _checked_save(row, rows, check, is_same)
        if info.is_missing and row.is_written and row.verdict != "invalid":
            missing.append(row)
        elif info.is_unreadable and not info.is_missing:
            unreadable = unreadable or f"{row.name} {info.why}"
        if row.origin == "named" and (info.is_missing or info.is_replaced):
            lost = lost or (row, "is gone" if info.is_missing else info.why)
        if info.valid or info.is_unknown:
            contents.add(row.content)
        if info.valid:
            whole.append(info)
        elif info.is_unknown and row.is_settled:
            why = "has a format that cannot be checked, and stopped growing"
            unknown.append(replace(info, valid=True, why=why))
        else:
            damaged.append(info)
            if info.is_unknown:
                why = "has a format that cannot be checked"
                unsettled.append(replace(info, valid=True, why=why))
        if not info.is_unreadable and row.verdict != "doubtful":
            verdict: Verdict = "valid" if info.valid else "invalid"
            verdict = "unexamined" if info.is_unknown else verdict
            updated[row.path, row.seen] = replace(row, verdict=verdict, why=info.why)
        if len(whole) >= wanted or len(damaged) > MOST_DAMAGED:
            break
    # An unsettled one is tried if there is no other: an attempt that cannot load it loses less than
    # a start from scratch that overwrites it.
    usable = tuple(whole + unknown or unsettled[:1])
    rows = tuple(updated.values())
    choice = CheckpointChoice(rows, usable, _refused(rows, attempts, usable, damaged))
    if usable:
        return choice
    lost = lost or ledger.lost_choice(rows, attempts)
    if unreadable is None and missing and folder is not None:
        unreadable = _without_content(folder, missing)
    is_lost = unreadable is None and lost is not None
    if unreadable is None and lost is not None:
        another = "gputui resume --from PATH chooses another"
        unreadable = f"{lost[0].name}, which a person chose, {lost[1]}: {another}"
    doubted = ledger.newest_uncertain(rows, attempts)
    doubt = None if doubted is None else f"{doubted.name} {doubted.why}"
    return replace(choice, unreadable=unreadable, doubted=doubt, is_lost=is_lost)


def _checked_save(row: CheckpointRow, rows: AnyRows, check: Validate, is_same: IsSame) -> CheckpointInfo:
    """The result of a check, with the other ranks' files of the save. Changed files are others."""

    def checked(one: CheckpointRow) -> CheckpointInfo:
        info = replace(check(Path(one.path)), step=one.step, seen=one.seen)
        if info.is_unreadable or is_same(one):
            return info
        why = "was written over meanwhile"
        return replace(info, valid=False, is_unknown=False, is_replaced=True, why=why)

    info = checked(row)
    for part in rows if row.is_written and row.ranks else ():
        is_there = part.path != row.path and part.is_written and part.gone_at is None
        if is_there and part.is_same_save_as(row) and (info.valid or info.is_unknown):
            found = checked(part)
            if not found.valid:
                info = replace(
                    info,
                    valid=False,
                    why=f"belongs to {part.name}, which {found.why}",
                    is_unknown=found.is_unknown,
                    is_unreadable=found.is_unreadable and not found.is_missing,
                )
    return info


def _without_content(folder: Path, missing: AnyRows) -> str | None:
    """A message if the folder of the missing checkpoints is empty, gone or another one, or None."""
    try:
        if all(name.startswith(".gputui") for name in os.listdir(folder)):
            return f"{folder} is empty, and {missing[0].name} was in it"
    except OSError as error:
        return f"{folder}, where {missing[0].name} was: {error.strerror or error}"
    real = os.path.realpath(folder)
    elsewhere = (row.path for row in missing if not Path(row.path).is_relative_to(real))
    found = next(elsewhere, None)
    return None if found is None else f"{found} is gone, and {folder} is another folder now"


def _refused(
    rows: Rows, attempts: Spans, usable: Sequence[CheckpointInfo], damaged: Sequence[CheckpointInfo]
) -> tuple[CheckpointInfo, ...]:
    """The checkpoints that are passed over: damaged ones, and those newer than the usable."""
    taken = {str(info.path) for info in usable}
    reasons = {str(info.path): info.why for info in damaged}
    best = usable[0].seen if usable else 0
    for row, why in ledger.refused(rows, attempts):
        if row.seen > best:
            reasons.setdefault(row.path, why)
    return tuple(
        CheckpointInfo(Path(row.path), row.step, False, reasons[row.path], row.size_bytes, row.seen)
        for row in ledger.newest_first(rows)
        if row.path in reasons.keys() - taken
    )


def for_person(search: CheckpointSearch, path: Path | None, wall: Callable[[], float] = time.time) -> CheckpointChoice:
    """Choose the best checkpoint for a person who resumes a run, or the one at ``path``, or where
    that leads to as a link: it may lead elsewhere later. Raises NotUsableError if that one cannot
    be used, and what `surveyed` raises."""
    rows = surveyed(search, wall)
    if path is None:
        return choose(rows, search.attempts, 1, folder=search.folder)
    real = Path(os.path.realpath(path))
    file, info = measured(real), validate(real)
    file = None if file is None else identified(file, {})
    if file is None or not (info.valid or info.is_unknown):
        text = f"{path} {info.why or 'is neither a file nor a folder'}; name another checkpoint"
        raise NotUsableError(text, may_pass=info.is_unreadable and not info.is_missing)
    steps = (row.step for row in rows if row.content == file.content and row.step is not None)
    step = next(steps, step_in_name(real, search.real_folder))
    rows = ledger.chosen_by_person(rows, search.attempts, file, step, wall())
    return CheckpointChoice(rows, (replace(info, valid=True, step=step),))


def passed_over(refused: Sequence[CheckpointInfo]) -> str:
    """``step_90.pt was written after the trouble began at step 50; 2 more``; "" for none."""
    shown = [f"{info.path.name} {info.why}" for info in refused[:MOST_SHOWN]]
    more = len(refused) - len(shown)
    return "; ".join([*shown, f"{count(more)} more"] if more > 0 else shown)
