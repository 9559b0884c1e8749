"""Which checkpoint belongs to which course of training. Pure: rows of the ledger in, rows of the ledger out.

A course is the chain of attempts linked by what they resumed from; an attempt that begins without a checkpoint begins a
new one. Candidates to resume from are the entries of the current course that were not struck off. An entry is found by
its path, belongs to the attempt that lived when it was written, and has its place by that attempt and that time; the
numbers in names decide nothing here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.runs.spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import AFTER_END_SECONDS, CheckpointRow, Neighbour
from gputui.store.runs import Run

NUMERIC_TROUBLE = frozenset({"nan_loss", "loss_spike"})
# What ended an attempt before its first step for a cause that lies outside of it: its checkpoint is not in doubt.
NOT_ITS_FAULT = frozenset(
    {"launch_failed", "lease_conflict", "gpu_busy", "gpu_lost", "interrupted", "stopped_outside", "shim_lost"}
)
# A folder is looked into several times in so long.
JUST_WRITTEN_SECONDS = 60.0
# A file that did not change for so long has stopped growing.
SETTLED_SECONDS = 3.0
# A line that was written before a file may carry a later time: the file's may be that of the kernel's last tick, of
# which there are 100 to 1000 a second, and a line without a time has that at which it was read.
FILE_CLOCK_SECONDS = 0.01
LINE_CLOCK_SECONDS = 1.0
# Parts of so many checkpoints are read for one that was copied.
MOST_COMPARED = 8
# A run without metrics that lived this long is past its set-up.
WORKED_SECONDS = 60.0

_BEFORE = "lay there before this run could have written it"

Rows = tuple[CheckpointRow, ...]


class FoundCheckpoint(NamedTuple):
    """What lies in a checkpoint folder; see `gputui.recovery.checkpoints.look_in`. ``changed_ns`` is when its inode
    last changed (st_ctime_ns of stat(2)), which no copy keeps; None if it is not known."""

    path: str
    modified_ns: int
    size_bytes: int | None
    changed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StepSpan:
    """What the ledger needs to know of an attempt. Times are UTC unix seconds; ``ended_at`` is None while it lives;
    ``has_worked``: it made a step."""

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool


StepAt = Callable[[int, float], int | None]
"""The newest step that an attempt had recorded at a moment (UTC unix seconds), None if its metrics do not tell."""

StepsInside = Callable[[str], Collection[int]]
"""The numbers that a checkpoint's own content calls steps, by its path."""

WentOn = Callable[[int, float, float], bool]
"""Whether an attempt told of a step between two moments (UTC unix seconds), and so had saved what it wrote before."""

HasSameContent = Callable[[str, str], bool]
"""Whether two checkpoints of one size, by their paths, hold the same."""


def spans(attempts: Sequence[Attempt], *, has_metrics: bool, now: float) -> tuple[StepSpan, ...]:
    """The attempts of a run, oldest first. ``now`` is UTC unix seconds."""
    found = []
    for row in sorted(attempts, key=lambda row: row.number):
        began = row.started_at if row.started_at is not None else row.created_at
        lasted = (row.ended_at if row.ended_at is not None else now) - began
        worked = row.last_step is not None or (not has_metrics and lasted >= WORKED_SECONDS)
        found.append(StepSpan(row.number, row.created_at, row.ended_at, row.resumed_from, row.last_step, worked))
    return tuple(found)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[StepSpan, ...]:
    """The same for a view, which has the specification as text."""
    spec = known_spec(run)
    return spans(attempts, has_metrics=spec is None or bool(spec.metrics), now=now)


# --- what is seen in the folder ---------------------------------------------------------------------------------------


def entered(
    rows: Sequence[CheckpointRow],
    found: Sequence[FoundCheckpoint],
    attempts: Sequence[StepSpan],
    *,
    now: float,
    step_at: StepAt,
    steps_inside: StepsInside = lambda _: (),
    has_same_content: HasSameContent = lambda _, __: False,
    went_on: WentOn = lambda _, __, ___: False,
    folder: PurePath | None = None,
    neighbours: Sequence[Neighbour] = (),
    rebuilt: Collection[int] = (),
) -> Rows:
    """The ledger after a look into the folder at ``now`` (UTC unix seconds).

    What is new, or was written again, belongs to the attempt that lived at that time; it is foreign where none did, and
    contested where an attempt of another run lived too (``neighbours``). What is gone is forgotten, but for what must
    not come back unnoticed.
    """
    known = {row.path: row for row in rows}
    kept = dict(known)
    newest = attempts[-1] if attempts else None
    step_of = partial(_step, now=now, step_at=step_at, steps_inside=steps_inside, folder=folder)
    # One that was moved here as a whole is new in all its files.
    is_same_folder = any(one.path in known for one in found)
    for one in found:
        row = known.get(one.path)
        if row is not None and (changed := _without_training(row, one, attempts, now, step_at, neighbours)) is not None:
            kept[one.path] = changed
            continue
        if row is None or (row.modified_ns, row.size_bytes) != (one.modified_ns, one.size_bytes):
            entry = _entry(one, attempts, now, step_of, folder, neighbours, rebuilt)
            if entry.is_written:
                has_stepped = step_at(entry.attempt, one.modified_ns / 1e9) is not None
                # Two files of a training may begin and end alike: what it writes again once it has stepped is its own.
                if row is None or not has_stepped:
                    entry = _unless_copied(entry, rows, attempts, has_same_content, has_stepped=has_stepped)
                if row is None and is_same_folder:
                    entry = _unless_placed_later(entry, one, attempts)
            if row is not None:
                # A folder may be seen half written.
                is_over = row.attempt != entry.attempt or went_on(row.attempt, row.modified_at, entry.modified_at)
                entry = replace(entry, before_ns=row.modified_ns if is_over else row.before_ns)
            kept[one.path] = entry
            continue
        if row.is_written and (other := _other_writer(one, neighbours)) is not None:
            # Known since the last look.
            kept[one.path] = replace(row, origin="contested", why=_may_be_words(other))
            continue
        settled = row.is_settled or now - row.first_seen_at >= SETTLED_SECONDS or _is_settled(one, attempts, row, now)
        step = row.step
        if row.is_written and newest is not None and row.attempt == newest.number:
            # The first look may have come before the lines that tell of it.
            step = step_of(one, row.attempt)
        kept[one.path] = replace(row, is_settled=settled, step=step)
    there = {one.path for one in found}
    if there & known.keys():
        # A folder in which nothing is known any more may be a mount that went away.
        for row in rows:
            if row.path not in there and row.verdict in ("unexamined", "valid", "cut") and row.origin != "named":
                del kept[row.path]
    return tuple(kept.values())


def _entry(
    one: FoundCheckpoint,
    attempts: Sequence[StepSpan],
    now: float,
    step_of: Callable[[FoundCheckpoint, int], int | None],
    folder: PurePath | None,
    neighbours: Sequence[Neighbour],
    rebuilt: Collection[int],
) -> CheckpointRow:
    at = one.modified_ns / 1e9
    writer = _writer(attempts, at, now)
    other = _other_writer(one, neighbours)
    last = attempts[-1].number if attempts else 0
    if writer is None:
        step = step_in_name(PurePath(one.path), folder)
        return CheckpointRow(one.path, last, "foreign", one.modified_ns, one.size_bytes, step, now, why=_BEFORE)
    if other is not None:
        number, step, why = writer.number, step_in_name(PurePath(one.path), folder), _may_be_words(other)
        return CheckpointRow(one.path, number, "contested", one.modified_ns, one.size_bytes, step, now, why=why)
    step = step_of(one, writer.number)
    row = CheckpointRow(one.path, writer.number, "run", one.modified_ns, one.size_bytes, step, now)
    return replace(
        row, origin="rebuilt" if writer.number in rebuilt else "run", is_settled=_is_settled(one, attempts, row, now)
    )


def _without_training(
    row: CheckpointRow,
    one: FoundCheckpoint,
    attempts: Sequence[StepSpan],
    now: float,
    step_at: StepAt,
    neighbours: Sequence[Neighbour],
) -> CheckpointRow | None:
    """The entry of a checkpoint that changed although the training cannot have written it; None for any other.

    Its name is the step that it was written at, and the attempt was at another one when it changed: somebody touched
    or copied it, or a deletion was cut short. The entry keeps its time, so that the next look judges with more lines.
    """
    at = one.modified_ns / 1e9
    name_step = explicit_step(row.name)
    writer = _writer(attempts, at, now)
    # A name may count the steps that are done where the metrics count from 0.
    is_step = name_step is not None and row.step is not None and name_step - 1 <= row.step <= name_step
    if name_step is None or writer is None or not is_step or row.modified_ns == one.modified_ns:
        return None
    if _other_writer(one, neighbours) is not None:
        return None
    latest = step_at(writer.number, min(at + LINE_CLOCK_SECONDS, now))
    if latest is not None and name_step > latest + 1:
        return row
    earliest = step_at(writer.number, min(at, now))
    has_shrunk = row.size_bytes is not None and one.size_bytes is not None and one.size_bytes < row.size_bytes
    if has_shrunk and earliest is not None and earliest > name_step:
        return replace(row, verdict="struck", why=f"lost a part of it at step {earliest}, after it was written")
    return None


def _other_writer(one: FoundCheckpoint, neighbours: Sequence[Neighbour]) -> Neighbour | None:
    """An attempt of another run that may have written it."""
    at = one.modified_ns / 1e9
    return next(
        (each for each in neighbours if _lived(each.begun_at, each.ended_at, at) and each.may_have_written(one.path)),
        None,
    )


def _may_be_words(other: Neighbour) -> str:
    return f"may be of {other.run_id}, which had the same folder"


def _unless_copied(
    entry: CheckpointRow,
    rows: Sequence[CheckpointRow],
    attempts: Sequence[StepSpan],
    has_same_content: HasSameContent,
    *,
    has_stepped: bool,
) -> CheckpointRow:
    """The entry, foreign if it is a copy of a checkpoint that is not of this course. Training that is repeated exactly
    saves the same at the same step, which is no copy."""
    alike = [
        row
        for row in rows
        if row.path != entry.path
        and row.size_bytes == entry.size_bytes
        and not (has_stepped and row.step is not None and row.step == entry.step)
    ]
    left = [(row, why) for row in alike if (why := outside(row, attempts, rows)) is not None]
    left.sort(key=lambda each: each[0].place, reverse=True)
    for row, why in left[:MOST_COMPARED]:
        if has_same_content(entry.path, row.path):
            return replace(entry, origin="foreign", why=f"is a copy of {row.name}, which {why}")
    return entry


def _unless_placed_later(entry: CheckpointRow, one: FoundCheckpoint, attempts: Sequence[StepSpan]) -> CheckpointRow:
    """The entry, foreign if the file came there after the end of the attempt that its time, which a copy may keep,
    names."""
    writer = next((span for span in attempts if span.number == entry.attempt), None)
    if writer is None or writer.ended_at is None or one.changed_ns is None:
        return entry
    if one.changed_ns / 1e9 <= writer.ended_at + AFTER_END_SECONDS:
        return entry
    return replace(entry, origin="foreign", why=f"came there after attempt {writer.number} had ended")


def _writer(attempts: Sequence[StepSpan], at: float, now: float) -> StepSpan | None:
    """The attempt that lived at a moment. One that begins in the future began before the clock was set back; what is
    newly found and was just written then is its. So is what the clock of a file server dates in the future."""
    newest = attempts[-1] if attempts else None
    if newest is not None and newest.begun_at > now and 0.0 <= now - at <= JUST_WRITTEN_SECONDS:
        return newest
    is_just_over = newest is not None and (newest.ended_at is None or now <= newest.ended_at + JUST_WRITTEN_SECONDS)
    if at > now and is_just_over:
        return newest
    return next((span for span in reversed(attempts) if _lived(span.begun_at, span.ended_at, at)), None)


def _lived(begun_at: float, ended_at: float | None, at: float) -> bool:
    return begun_at <= at and (ended_at is None or at <= ended_at + AFTER_END_SECONDS)


def _step(
    one: FoundCheckpoint,
    attempt: int,
    *,
    now: float,
    step_at: StepAt,
    steps_inside: StepsInside,
    folder: PurePath | None,
) -> int | None:
    written_at = one.modified_ns / 1e9
    known = step_at(attempt, min(written_at, now))
    if known is None:
        return step_in_name(PurePath(one.path), folder)
    # Of the steps that the times leave open, the name or the content tells which was done.
    named = explicit_step(PurePath(one.path).name)
    if named is not None:
        within_tick = step_at(attempt, min(written_at + FILE_CLOCK_SECONDS, now))
        # A name may count the steps that are done where the metrics count from 0.
        if within_tick is not None and named <= within_tick + 1:
            return max(known, min(named, within_tick))
    within = step_at(attempt, min(written_at + LINE_CLOCK_SECONDS, now))
    if within is None:
        return known
    if named is not None:
        return named if named <= within else known
    # Some count the step that is saved, others those that are done.
    return max((step for step in steps_inside(one.path) if known <= step <= within + 1), default=known)


def _is_settled(one: FoundCheckpoint, attempts: Sequence[StepSpan], row: CheckpointRow, now: float) -> bool:
    """Whether it was left alone for a while as long as somebody could have written on."""
    writer = next((span for span in attempts if span.number == row.attempt), None)
    until = now if writer is None or writer.ended_at is None else writer.ended_at
    return until - one.modified_ns / 1e9 >= SETTLED_SECONDS


# --- what attempts do to it -------------------------------------------------------------------------------------------


def attempt_begins(
    rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan], number: int, resume_from: str | None
) -> Rows:
    """Attempt ``number`` begins from a checkpoint: once it has worked, what was written behind that one is left.
    ``attempts`` are those before it."""
    worked = _worked(rows, attempts)
    rows = tuple(row if row.left_by in worked else replace(row, left_by=None) for row in rows)
    if resume_from is None:
        return rows
    base = next((row for row in rows if row.path == resume_from and row.attempt < number), None)
    return tuple(
        replace(row, left_by=number)
        if row.left_by is None and row.attempt < number and (base is None or row.place > base.place)
        else row
        for row in rows
    )


def attempt_ended(
    rows: Sequence[CheckpointRow],
    attempts: Sequence[StepSpan],
    number: int,
    kind: str | None = None,
    step: int | None = None,
    began_at: float | None = None,
) -> Rows:
    """Attempt ``number`` ended; with an incident of ``kind`` at ``step``, or without one. ``began_at`` (UTC unix
    seconds) replaces the step of an attempt whose steps restart, such as steps counted per epoch.

    Of numbers that went wrong, everything from that step on is struck off. A checkpoint that the attempt began from and
    could not load is struck off too; one from which it made no step is in doubt, and one from which it did is not.
    """
    span = next((span for span in attempts if span.number == number), None)
    if span is None:
        return tuple(rows)
    if kind in NUMERIC_TROUBLE:
        limit = step if step is not None else span.last_step
        reached = max((each for each in (limit, span.last_step) if each is not None), default=None)
        rows = [_after_trouble(row, number, limit, reached, began_at) for row in rows]
    # Where steps are known at all, a checkpoint that was saved before the first of them shows nothing.
    has_steps = any(each.last_step is not None for each in attempts)
    if span.has_worked or (not has_steps and any(row.is_written and row.attempt == number for row in rows)):
        return tuple(
            replace(row, verdict="unexamined", why="", failed_starts=0)
            if row.path == span.resumed_from and row.verdict == "doubtful"
            else row
            for row in rows
        )
    if kind is None or kind in NOT_ITS_FAULT or span.resumed_from is None:
        return tuple(rows)
    return tuple(
        _failed_start(row, number, kind) if row.path == span.resumed_from and row.attempt < number else row
        for row in rows
    )


def _after_trouble(
    row: CheckpointRow, number: int, limit: int | None, reached: int | None, began_at: float | None
) -> CheckpointRow:
    """The row, struck off if it was written from the step ``limit`` on. ``reached``: the attempt's last step."""
    if not row.is_written or row.verdict == "struck" or row.attempt > number:
        return row
    if began_at is not None:
        if row.attempt < number or row.modified_at < began_at:
            return row
        return replace(row, verdict="struck", why="was written after the trouble began")
    steps = [] if row.step is None else [row.step]
    # A name that is beyond every step counts something else, such as samples.
    name_step = explicit_step(row.name)
    if name_step is not None and (reached is None or name_step <= reached + 1):
        steps.append(name_step)
    if limit is None or not steps:
        # Nothing tells whether it is of the trouble: what this attempt wrote may be.
        if row.attempt != number:
            return row
        return replace(row, verdict="struck", why="may have been written after the trouble began")
    if max(steps) < limit:
        return row
    return replace(row, verdict="struck", why=f"was written after the trouble began at step {limit}")


def _failed_start(row: CheckpointRow, number: int, kind: str) -> CheckpointRow:
    if row.verdict == "struck":
        return row
    if kind == "corrupt_checkpoint":
        return replace(row, verdict="struck", why=f"could not be loaded by attempt {number}")
    why = f"was resumed from by attempt {number}, which ended before its first step"
    return replace(row, verdict="doubtful", why=why, failed_starts=row.failed_starts + 1)


def rolled_back(rows: Sequence[CheckpointRow], path: str, why: str) -> Rows:
    """Everything that was written behind one checkpoint is struck off."""
    base = next((row for row in rows if row.path == path), None)
    if base is None:
        return tuple(rows)
    return tuple(
        replace(row, verdict="struck", why=why)
        if row.place > base.place and row.verdict != "struck" and not row.may_be_foreign
        else row
        for row in rows
    )


def named(
    rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan], one: FoundCheckpoint, step: int | None, now: float
) -> Rows:
    """A person chose a checkpoint: what came after it is struck off, and where it is not of this course, all of it."""
    row = next((row for row in rows if row.path == one.path), None)
    is_same = row is not None and (row.modified_ns, row.size_bytes) == (one.modified_ns, one.size_bytes)
    if row is not None and is_same and outside(row, attempts, rows) is None:
        chosen = replace(row, verdict="valid", why="", failed_starts=0)
        others = tuple(other for other in rows if other.path != one.path)
        return rolled_back((*others, chosen), one.path, f"was left when a person chose {chosen.name}")
    last = attempts[-1].number if attempts else 0
    known = row.step if row is not None and is_same else step
    chosen = CheckpointRow(
        one.path, last, "named", one.modified_ns, one.size_bytes, known, now, True, "valid", "was chosen by a person"
    )
    why = f"was left when a person chose {chosen.name}"
    return (
        *(
            other if other.verdict == "struck" else replace(other, verdict="struck", why=why)
            for other in rows
            if other.path != one.path
        ),
        chosen,
    )


def replayed(
    rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan], incidents: Mapping[int, tuple[str, int | None]]
) -> Rows:
    """What the attempts so far did to a ledger that was begun after them. ``incidents``: kind and step by attempt."""
    now = tuple(rows)
    for place, span in enumerate(attempts):
        now = attempt_begins(now, attempts[:place], span.number, span.resumed_from)
        if span.ended_at is not None:
            kind, step = incidents.get(span.number, (None, None))
            now = attempt_ended(now, attempts[: place + 1], span.number, kind, step)
    return now


# --- what follows -----------------------------------------------------------------------------------------------------


def chosen_in_vain(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> CheckpointRow | None:
    """The checkpoint that a person chose for the newest attempt and that could not be loaded: no one asked for the
    beginning instead, which would write over what the run saved before."""
    path = attempts[-1].resumed_from if attempts else None
    return next((row for row in rows if row.path == path and row.origin == "named" and row.verdict == "struck"), None)


def doubted(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> CheckpointRow | None:
    """The newest one that would be a candidate if no other run could have written it and its save had not been cut
    short; None if there is none."""
    begin, worked = _begin_of_course(attempts), _worked(rows, attempts)
    found = (row for row in rows if (row.origin == "contested" or row.verdict == "cut") and row.verdict != "struck")
    mine = (row for row in found if _outside_of_course(row, begin, worked) is None)
    return max(mine, key=lambda row: row.place, default=None)


def outside(row: CheckpointRow, attempts: Sequence[StepSpan], rows: Iterable[CheckpointRow]) -> str | None:
    """Why an entry is no candidate, to complete "the checkpoint …"; None if it is one."""
    return _outside(row, _begin_of_course(attempts), _worked(rows, attempts))


def candidates(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> list[CheckpointRow]:
    """What may be resumed from, the best first: the newest that no attempt failed to begin from, and behind those the
    doubtful ones, because the beginning would lose more."""
    begin, worked = _begin_of_course(attempts), _worked(rows, attempts)
    usable = [row for row in rows if _outside(row, begin, worked) is None]
    usable.sort(key=lambda row: row.place, reverse=True)
    usable.sort(key=lambda row: row.failed_starts)
    return usable


def refused(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> list[tuple[CheckpointRow, str]]:
    """What is passed over and why, the newest first; the doubtful and the damaged among them."""
    begin, worked = _begin_of_course(attempts), _worked(rows, attempts)
    found = []
    for row in sorted(rows, key=lambda row: row.place, reverse=True):
        why = _outside(row, begin, worked)
        if why is None and row.verdict in ("doubtful", "invalid"):
            why = row.why
        if why is not None:
            found.append((row, why))
    return found


def course(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> list[CheckpointRow]:
    """The candidates in the order in which they were written, the newest first."""
    return sorted(candidates(rows, attempts), key=lambda row: row.place, reverse=True)


def out_of_order(rows: Sequence[CheckpointRow], attempts: Sequence[StepSpan]) -> tuple[str, str] | None:
    """Two names of the course whose steps contradict the order in which they were written (the older one first), or
    None. Such names are not believed, and nothing is removed on their account."""
    numbered = [
        (step, row.name)
        for row in reversed(course(rows, attempts))
        if row.is_written and (step := explicit_step(row.name)) is not None
    ]
    for (step, name), (later, later_name) in itertools.pairwise(numbered):
        if later < step:
            return name, later_name
    return None


def _begin_of_course(attempts: Sequence[StepSpan]) -> int:
    return next((span.number for span in reversed(attempts) if span.resumed_from is None), 0)


def _worked(rows: Iterable[CheckpointRow], attempts: Sequence[StepSpan]) -> set[int]:
    """The attempts that made a step, or wrote a checkpoint."""
    return {span.number for span in attempts if span.has_worked} | {row.attempt for row in rows if row.is_written}


def _outside(row: CheckpointRow, begin: int, worked: set[int]) -> str | None:
    if row.may_be_foreign or row.verdict in ("cut", "struck"):
        return row.why
    return _outside_of_course(row, begin, worked)


def _outside_of_course(row: CheckpointRow, begin: int, worked: set[int]) -> str | None:
    if row.attempt < begin:
        return f"is of the training that was left when attempt {begin} began from the start"
    if row.left_by is not None and row.left_by in worked:
        return f"was left when attempt {row.left_by} went on from an earlier one"
    return None
