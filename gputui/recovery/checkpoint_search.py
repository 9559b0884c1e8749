"""Looking for checkpoints: the folder, the metrics' times and the content of what may be resumed from. All of it may be
slow; the agent does it in jobs."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from gputui.charts.units import count
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_writers, cut_saves
from gputui.recovery.checkpoint_contents import has_same_content, steps_inside
from gputui.recovery.checkpoint_ledger import FoundCheckpoint, Rows, StepSpan
from gputui.recovery.checkpoints import MOST_FOUND, CheckpointInfo, look_in, measured, validate
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow, Neighbour, Verdict
from gputui.store.database import open_reader
from gputui.store.metrics.step_times import StepTimes

# Beyond so many that cannot be used the folder is taken to hold none that can.
MOST_DAMAGED = 1000
# A script's clock is the agent's; a line may still be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0
_SAVED_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin", ".pkl", ".npz"})
_MOST_PLACES, _MOST_DEPTH = 2000, 5
# Folders that were saved before, with which one is compared.
_MOST_SIBLINGS = 3
# A line without a time has that at which it was read, which is a little later.
ARRIVAL_SECONDS = 1.0

Validate = Callable[[Path], CheckpointInfo]


@dataclass(frozen=True, slots=True)
class CheckpointSearch:
    """Where to look, and what is known so far.

    Attributes:
        database: the store, read for the times of steps; rows: the run's ledger; attempts: the run's, oldest first.
        neighbours: attempts of the home's other runs in the same folder; incidents: kind and step by attempt.
        rebuilt: the attempts that are older than the ledger: what they wrote is concluded from times.
    """

    database: Path
    run_id: str
    folder: Path
    pattern: str
    rows: Rows
    attempts: tuple[StepSpan, ...]
    neighbours: tuple[Neighbour, ...] = ()
    incidents: Mapping[int, tuple[str, int | None]] = field(default_factory=dict)
    rebuilt: frozenset[int] = frozenset()

    @property
    def home(self) -> Path:
        """The home's state folder, by which other homes know it."""
        return Path(os.path.realpath(self.database.parent))


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The ledger after a search, and what may be resumed from: ``usable``, the best first, and ``refused``, the newest
    first, each with the reason. Where nothing is usable, ``unreadable`` says why there may be some that cannot be read
    now, and ``doubted`` which may be another run's or not whole."""

    rows: Rows
    usable: tuple[CheckpointInfo, ...] = ()
    refused: tuple[CheckpointInfo, ...] = ()
    unreadable: str | None = None
    doubted: str | None = None

    @property
    def infos(self) -> list[CheckpointInfo]:
        """All of them, as decisions take them."""
        return [*self.usable, *self.refused]


@dataclass(frozen=True, slots=True)
class UnmatchedPattern:
    """No file of the run matches its pattern. ``lookalike`` is one that it may have meant, ``pattern`` a glob that
    would match it; None if there is none."""

    lookalike: Path | None = None
    pattern: str | None = None


class NotUsableError(Exception):
    """A checkpoint that a person named cannot be resumed from; the text says why. ``may_pass``: it cannot be read
    now."""

    def __init__(self, text: str, *, may_pass: bool) -> None:
        super().__init__(text)
        self.may_pass = may_pass


def surveyed(search: CheckpointSearch, wall: Callable[[], float] = time.time) -> Rows:
    """The ledger after a look into the folder. ``wall`` gives UTC unix seconds.

    Raises OSError if the folder cannot be read, StoreError or sqlite3.Error.
    """
    found = look_in(search.folder, search.pattern)
    if len(found) == MOST_FOUND:
        # Newer ones, perhaps of others, do not make those that are known go away.
        there = {one.path for one in found}
        rest = (measured(Path(row.path)) for row in search.rows if row.is_written and row.path not in there)
        found += [one for one in rest if one is not None]
    begins = {span.number: span.begun_at for span in search.attempts}
    now = wall()
    elsewhere = checkpoint_writers.others(
        search.home, search.run_id, search.attempts, search.folder, (one.path for one in found), now
    )
    with closing(open_reader(search.database)) as connection:
        times = StepTimes(connection, search.run_id)
        rows = ledger.entered(
            search.rows,
            found,
            search.attempts,
            now=now,
            step_at=lambda number, at: times.newest_at(number, at, begins[number] - BEFORE_BEGIN_SECONDS),
            steps_inside=lambda path: steps_inside(Path(path)),
            has_same_content=lambda one, other: has_same_content(Path(one), Path(other)),
            folder=search.folder,
            neighbours=(*search.neighbours, *elsewhere),
            rebuilt=search.rebuilt,
            went_on=lambda number, since, until: _went_on(search, times, number, since, until),
        )
        rows = tuple(_unless_cut(row, rows, search, times) for row in rows)
    return rows if search.rows else ledger.replayed(rows, search.attempts, search.incidents)


def _unless_cut(row: CheckpointRow, rows: Rows, search: CheckpointSearch, times: StepTimes) -> CheckpointRow:
    """The entry, with the verdict ``cut`` if it is a folder whose save the end of the newest attempt cut short. Raises
    OSError."""
    last = search.attempts[-1] if search.attempts else None
    if last is None or last.ended_at is None or row.attempt != last.number or not row.is_written:
        return row
    if row.verdict in ("cut", "struck") or not Path(row.path).is_dir():
        return row
    written = [each for each in rows if each.is_written and each.attempt == last.number]
    if times.come_with_checkpoints() or times.newest_line(last.number, math.inf, last.begun_at) is None:
        is_last_act = row.place == max(each.place for each in written)
    else:
        is_last_act = not _went_on(search, times, last.number, row.modified_at, math.inf)
    why = _why_cut(row, rows, search, times) if is_last_act else None
    return row if why is None else replace(row, verdict="cut", why=f"{why}; its save may have been cut short")


def _why_cut(row: CheckpointRow, rows: Rows, search: CheckpointSearch, times: StepTimes) -> str | None:
    path, before_ns = Path(row.path), row.before_ns
    parts = cut_saves.parts_of(path)
    if (shard := cut_saves.with_old_index(parts)) is not None:
        return f"holds {shard}, which is newer than its .metadata"

    def is_kept(at_ns: int) -> bool:
        assert before_ns is not None
        at, before = at_ns / 1e9, before_ns / 1e9
        writer = next((span for span in reversed(search.attempts) if span.begun_at <= at), None)
        first_at = None if writer is None else times.first_at(writer.number)
        if first_at is None or at < first_at:
            # Before its first step an attempt has nothing to save.
            return True
        return any(_went_on(search, times, span.number, at, before) for span in search.attempts)

    if before_ns is not None and (old := cut_saves.of_two_saves(parts, before_ns, is_kept)) is not None:
        return f"holds files of two saves, of the earlier one {old}"
    siblings = [
        each
        for each in ledger.course(rows, search.attempts)
        if each.is_written and each.place < row.place and cut_saves.shape(each.name) == cut_saves.shape(row.name)
    ]
    alike = [each for each in siblings if Path(each.path).is_dir()][:_MOST_SIBLINGS]
    older = [cut_saves.OlderFolder(cut_saves.parts_of(Path(each.path)), each.attempt == row.attempt) for each in alike]
    missing = cut_saves.lacking(parts, older)
    return None if missing is None else f"lacks a file such as {missing}"


def _went_on(search: CheckpointSearch, times: StepTimes, attempt: int, since: float, until: float) -> bool:
    """Whether an attempt told of a step between two moments, and not only late of one that it had made."""
    begun_at = next(span.begun_at for span in search.attempts if span.number == attempt)
    newest = times.newest_line(attempt, until, begun_at - BEFORE_BEGIN_SECONDS)
    return newest is not None and newest[0] > since + ARRIVAL_SECONDS


def is_unchanged(row: CheckpointRow) -> bool:
    """Whether a checkpoint is as it was when it was last seen."""
    now = measured(Path(row.path))
    return now is not None and (now.modified_ns, now.size_bytes) == (row.modified_ns, row.size_bytes)


def unmatched(search: CheckpointSearch) -> UnmatchedPattern:
    """What the run saved where its pattern finds nothing: in its folder, or in the nearest one around it that there is.
    Raises OSError if that cannot be read."""
    folder = next(place for place in (search.folder, *search.folder.parents) if place.is_dir())
    begun_at = search.attempts[0].begun_at if search.attempts else 0.0
    found: list[FoundCheckpoint] = []
    for place in islice(_below(folder, _MOST_DEPTH), _MOST_PLACES):
        if place.suffix in _SAVED_SUFFIXES or (explicit_step(place.name) is not None and place.is_dir()):
            one = measured(place)
            found += [one] if one is not None and one.modified_ns / 1e9 >= begun_at else []
    if not found:
        return UnmatchedPattern()
    newest = Path(max(found, key=lambda one: one.modified_ns).path)
    inside = newest.relative_to(folder)
    name = re.sub(r"\d+", "*", newest.name)
    return UnmatchedPattern(inside, f"**/{name}" if len(inside.parts) > 1 else name)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for place in sorted(folder.iterdir()):
        if place.name.startswith("."):
            continue
        yield place
        if depth > 1 and place.is_dir() and not place.is_symlink():
            yield from _below(place, depth - 1)


def trouble_began(search: CheckpointSearch, number: int, step: int | None) -> float | None:
    """When an attempt did the step at which its numbers went wrong (UTC unix seconds), where its steps start again, so
    that ``step`` alone does not tell; else None. Raises StoreError or sqlite3.Error."""
    last_step = next((span.last_step for span in search.attempts if span.number == number), None)
    limit = step if step is not None else last_step
    if limit is None:
        return None
    with closing(open_reader(search.database)) as connection:
        times = StepTimes(connection, search.run_id)
        at = times.done_at(number, limit) if times.start_again(number) else None
    return None if at is None else at - ARRIVAL_SECONDS


def choose(
    rows: Sequence[CheckpointRow],
    attempts: Sequence[StepSpan],
    wanted: int,
    check: Validate = validate,
    folder: Path | None = None,
) -> CheckpointChoice:
    """Read candidates, the best first, until ``wanted`` of them are whole. Those of a format that cannot be checked
    come behind those that are whole; those of them that may have been growing at the end, as those in doubt, only where
    there is nothing else. Where ``folder``, in which the run saves, is empty or not there, its file system may be away:
    what was known of it counts as unreadable."""
    now = {row.path: row for row in rows}
    whole: list[CheckpointInfo] = []
    unknown: list[CheckpointInfo] = []
    unsettled: list[CheckpointInfo] = []
    damaged: list[CheckpointInfo] = []
    failed_starts = 0
    unreadable: str | None = None
    lost: str | None = None
    for row in ledger.candidates(rows, attempts):
        if row.failed_starts > failed_starts:
            if whole or unknown or unsettled:
                break
            failed_starts = row.failed_starts
        info = replace(check(Path(row.path)), step=row.step)
        if info.is_unreadable and not info.is_missing:
            unreadable = unreadable or f"{row.name} {info.why}"
        if info.is_missing and row.is_written and row.verdict != "invalid":
            lost = lost or row.name
        if info.valid:
            whole.append(info)
        elif info.is_unknown and row.is_settled:
            unknown.append(replace(info, valid=True, why="has a format that cannot be checked, and stopped growing"))
        elif info.is_unknown:
            unsettled.append(replace(info, valid=True, why="has a format that cannot be checked"))
            damaged.append(info)
        else:
            damaged.append(info)
        if not info.is_unreadable and row.verdict != "doubtful":
            verdict: Verdict = "valid" if info.valid else "unexamined" if info.is_unknown else "invalid"
            now[row.path] = replace(row, verdict=verdict, why=info.why)
        if len(whole) >= wanted or len(damaged) > MOST_DAMAGED:
            break
    # An attempt that cannot load it loses less than one that starts over and overwrites it.
    usable = tuple(whole + unknown or unsettled[:1])
    rows = tuple(now.values())
    chosen = ledger.chosen_in_vain(rows, attempts)
    if chosen is not None and not usable:
        unreadable = (
            unreadable
            or f"{chosen.name}, which a person chose, {chosen.why}: gputui resume --from PATH chooses another"
        )
    if lost is not None and folder is not None and not usable:
        unreadable = unreadable or _without_content(folder, lost)
    refused = _refused(rows, attempts, usable, damaged)
    if usable:
        return CheckpointChoice(rows, usable, refused)
    doubt = ledger.doubted(rows, attempts)
    words = None if doubt is None else f"{doubt.name} {doubt.why}"
    return CheckpointChoice(rows, (), refused, unreadable, words)


def _without_content(folder: Path, lost: str) -> str | None:
    """Says that a folder, in which there was a checkpoint, is empty or not there; None where something is in it."""
    try:
        with os.scandir(folder) as entries:
            is_used = any(not entry.name.startswith(checkpoint_writers.PREFIX) for entry in entries)
            return None if is_used else f"{folder} is empty, and {lost} was in it"
    except OSError as error:
        return f"{folder}, where {lost} was: {error.strerror or error}"


def _refused(
    rows: Rows, attempts: Sequence[StepSpan], usable: Sequence[CheckpointInfo], damaged: Sequence[CheckpointInfo]
) -> tuple[CheckpointInfo, ...]:
    """What is passed over: all that is newer than what is taken, and what was found damaged."""
    taken = {str(info.path) for info in usable}
    reasons = {str(info.path): info.why for info in damaged if str(info.path) not in taken}
    first = next((row.place for row in rows if usable and row.path == str(usable[0].path)), None)
    for row, why in ledger.refused(rows, attempts):
        if row.path not in taken and (first is None or row.place > first):
            reasons.setdefault(row.path, why)
    newest_first = sorted((row for row in rows if row.path in reasons), key=lambda row: row.place, reverse=True)
    return tuple(
        CheckpointInfo(Path(row.path), row.step, False, reasons[row.path], row.size_bytes, row.modified_at)
        for row in newest_first
    )


def for_person(search: CheckpointSearch, path: Path | None, check: Validate = validate) -> CheckpointChoice:
    """What a person who resumes a run continues from: the best there is, or the one that is named by its ``path``.

    Raises NotUsableError if that one cannot be used, and what `surveyed` raises.
    """
    if path is None:
        return choose(surveyed(search), search.attempts, 1, check, search.folder)
    rows = surveyed(search)
    one = measured(path)
    info = check(path)
    if one is None or not (info.valid or info.is_unknown):
        text = f"{path} {info.why or 'is neither a file nor a folder'}; name another checkpoint"
        raise NotUsableError(text, may_pass=info.is_unreadable and not info.is_missing)
    known = next((row.step for row in rows if row.path == one.path), None)
    step = known if known is not None else step_in_name(path, search.folder)
    now = time.time()
    return CheckpointChoice(
        ledger.named(rows, search.attempts, one, step, now), (replace(info, valid=True, step=step),)
    )


# --- in words ---------------------------------------------------------------------------------------------------------


def passed_over(refused: Sequence[CheckpointInfo], most: int = 3) -> str:
    """``step_90.pt was written after the trouble began at step 50; 2 more``; "" for none."""
    shown = [f"{info.path.name} {info.why}" for info in refused[:most]]
    more = len(refused) - len(shown)
    return "; ".join([*shown, f"{count(more)} more"] if more > 0 else shown)
