"""The choice of a checkpoint to resume from: validated candidates of the ledger, or the one that a
person names. Reads whole files, so the agent does it in jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count
from gputui.recovery.checkpoints import ledger, resumable
from gputui.recovery.checkpoints.content import content_of, identified
from gputui.recovery.checkpoints.resumable import AnyRows, Rows, Spans
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.runs.checkpoint_files import measured
from gputui.runs.checkpoint_formats import CheckpointInfo, validate
from gputui.runs.checkpoint_names import step_in_name
from gputui.store.checkpoints import CheckpointRow, Verdict

MOST_SHOWN = 3  # passed over

_UNCHECKED = "has a format that cannot be checked"
_STOPPED_GROWING = f"{_UNCHECKED}, and stopped growing"
_HALF_WRITTEN = "may be half-written: nothing shows that its attempt went on after it, and its format cannot be checked"

Validate = Callable[[Path], CheckpointInfo]
IsSame = Callable[[CheckpointRow], bool]


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


class NotUsableError(Exception):
    """A named checkpoint cannot be used; ``may_pass``: it cannot be read now."""

    def __init__(self, text: str, *, may_pass: bool) -> None:
        super().__init__(text)
        self.may_pass = may_pass


def is_unchanged(row: CheckpointRow) -> bool:
    path = Path(row.path)
    file = measured(path)
    try:
        return file is not None and (file.stamp == row.stamp or content_of(path) == row.content)
    except OSError:
        return False


@dataclass(slots=True)
class _Validated:
    """The candidates that were validated so far.

    Attributes:
        rows: the ledger with their verdicts, by place and order.
        whole: those that are valid.
        unknown: those of a format that cannot be checked, which have stopped growing.
        unsettled: those of such a format that may have been growing.
        damaged: all others.
        missing: the rows of those that are gone.
        contents: of those that may be used.
        unreadable: why one cannot be read now.
        lost: one that a person chose and that is gone or was written over, and which of both.
    """

    rows: dict[tuple[str, int], CheckpointRow]
    whole: list[CheckpointInfo] = field(default_factory=list)
    unknown: list[CheckpointInfo] = field(default_factory=list)
    unsettled: list[CheckpointInfo] = field(default_factory=list)
    damaged: list[CheckpointInfo] = field(default_factory=list)
    missing: list[CheckpointRow] = field(default_factory=list)
    contents: set[str] = field(default_factory=set)
    unreadable: str | None = None
    lost: tuple[CheckpointRow, str] | None = None

    def add(self, row: CheckpointRow, info: CheckpointInfo) -> None:
        """Add a candidate and the result of its validation."""
        self._note_unreadable(row, info)
        if row.origin == "named" and self.lost is None:
            if info.is_missing:
                self.lost = row, "is gone"
            elif info.is_replaced:
                self.lost = row, info.why
        if info.valid or info.is_unknown:
            self.contents.add(row.content)
        if info.valid:
            self.whole.append(info)
        elif info.is_unknown and row.is_settled:
            self.unknown.append(info._replace(valid=True, why=_STOPPED_GROWING))
        elif info.is_unknown:
            self.unsettled.append(info._replace(valid=True, why=_UNCHECKED))
            self.damaged.append(info._replace(why=_HALF_WRITTEN))
        else:
            self.damaged.append(info)
        if not info.is_unreadable and row.verdict != "doubtful":
            verdict: Verdict = "invalid"
            if info.valid:
                verdict = "valid"
            elif info.is_unknown:
                verdict = "unexamined"
            self.rows[row.path, row.place] = replace(row, verdict=verdict, why=info.why)

    def _note_unreadable(self, row: CheckpointRow, info: CheckpointInfo) -> None:
        if info.is_missing:
            if row.is_written and row.verdict != "invalid":
                self.missing.append(row)
        elif info.is_unreadable and self.unreadable is None:
            self.unreadable = f"{row.name} {info.why}"

    @property
    def usable(self) -> list[CheckpointInfo]:
        """Those to resume from, best first. An unsettled one is tried if there is no other: an
        attempt that cannot load it loses less than a start from scratch that overwrites it."""
        return self.whole + self.unknown or self.unsettled[:1]


def choose(
    rows: AnyRows,
    attempts: Spans,
    needed: int,
    check: Validate = validate,
    folder: Path | None = None,
    is_same: IsSame = is_unchanged,
) -> CheckpointChoice:
    """Validate candidates, best first, until enough are whole.

    Formats that cannot be checked come after whole ones. Among them, files that may have been
    growing at the end count only if there is nothing else, like doubtful ones. One that is missing
    where the folder was before counts as unreadable, and so does one that a person chose and that
    is missing or was written over since.

    Args:
        rows: the ledger.
        needed: so many whole ones are enough.
        folder: where the run saves. If it is empty or missing, its file system may be away: known
            checkpoints then count as unreadable.
    """
    validated = _Validated({(row.path, row.place): row for row in rows})
    failed_starts = 0
    for row in resumable.candidates(rows, attempts):
        if row.failed_starts > failed_starts and validated.usable:
            break
        if row.content in validated.contents:
            continue
        failed_starts = row.failed_starts
        validated.add(row, _checked_save(row, rows, check, is_same))
        if len(validated.whole) >= needed:
            break
    judged_rows = tuple(validated.rows.values())
    usable = tuple(validated.usable)
    choice = CheckpointChoice(judged_rows, usable, _refused(judged_rows, attempts, usable, validated.damaged))
    if usable:
        return choice
    return _with_reasons(choice, validated, attempts, folder)


def _with_reasons(
    choice: CheckpointChoice, validated: _Validated, attempts: Spans, folder: Path | None
) -> CheckpointChoice:
    """A choice without a usable checkpoint, with what is unreadable, lost or doubted."""
    uncertain = resumable.newest_uncertain(choice.rows, attempts)
    if uncertain is not None:
        choice = replace(choice, doubted=f"{uncertain.name} {uncertain.why}")
    unreadable = validated.unreadable
    if unreadable is None and validated.missing and folder is not None:
        unreadable = _without_content(folder, validated.missing)
    if unreadable is not None:
        return replace(choice, unreadable=unreadable)
    lost = validated.lost or resumable.lost_choice(choice.rows, attempts)
    if lost is None:
        return choice
    checkpoint, why = lost
    remedy = "gputui resume --from PATH chooses another"
    text = f"{checkpoint.name}, which a person chose, {why}: {remedy}"
    return replace(choice, unreadable=text, is_lost=True)


def _checked_save(row: CheckpointRow, rows: AnyRows, check: Validate, is_same: IsSame) -> CheckpointInfo:
    """The result of a check, with the other ranks' files of the save. Changed files are others."""

    def checked(entry: CheckpointRow) -> CheckpointInfo:
        info = check(Path(entry.path))._replace(step=entry.step, place=entry.place)
        if info.is_unreadable or is_same(entry):
            return info
        why = "was written over meanwhile"
        return info._replace(valid=False, is_unknown=False, is_replaced=True, why=why)

    info = checked(row)
    if not row.is_written or not row.ranks:
        return info
    parts = (part for part in rows if part.path != row.path and part.is_written and part.gone_at is None)
    for part in parts:
        if not (info.valid or info.is_unknown):
            break  # another part has spoilt the save
        if not part.is_same_save_as(row):
            continue
        part_info = checked(part)
        if not part_info.valid:
            info = info._replace(
                valid=False,
                why=f"belongs to {part.name}, which {part_info.why}",
                is_unknown=part_info.is_unknown,
                is_unreadable=part_info.is_unreadable and not part_info.is_missing,
            )
    return info


def _without_content(folder: Path, missing: AnyRows) -> str | None:
    """A message if the folder of the missing checkpoints is empty, gone or another one, or None."""
    first_name = missing[0].name
    try:
        if all(name.startswith(".gputui") for name in os.listdir(folder)):
            return f"{folder} is empty, and {first_name} was in it"
    except OSError as error:
        return f"{folder}, where {first_name} was: {error.strerror or error}"
    real = os.path.realpath(folder)
    elsewhere = (row.path for row in missing if not Path(row.path).is_relative_to(real))
    path = next(elsewhere, None)
    if path is None:
        return None
    return f"{path} is gone, and {folder} is another folder now"


def _refused(
    rows: Rows, attempts: Spans, usable: Sequence[CheckpointInfo], damaged: Sequence[CheckpointInfo]
) -> tuple[CheckpointInfo, ...]:
    """The checkpoints that are passed over: damaged ones, and those newer than the usable."""
    usable_paths = {str(info.path) for info in usable}
    reasons = {str(info.path): info.why for info in damaged}
    best = usable[0].place if usable else 0
    for row, why in resumable.refused(rows, attempts):
        if row.place > best:
            reasons.setdefault(row.path, why)
    passed_paths = reasons.keys() - usable_paths
    return tuple(
        CheckpointInfo(
            Path(row.path), row.step, valid=False, why=reasons[row.path], size_bytes=row.size_bytes, place=row.place
        )
        for row in resumable.newest_first(rows)
        if row.path in passed_paths
    )


def for_person(search: CheckpointSearch, path: Path | None, wall: Callable[[], float] = time.time) -> CheckpointChoice:
    """Choose the best checkpoint for a person who resumes a run, or the one that the person names.

    Args:
        path: the named one. If it is a link, the file that it leads to now is chosen.
        wall: returns UTC unix seconds.

    Raises:
        NotUsableError: the named one cannot be used.
        OSError, StoreError, sqlite3.Error: as raised by `surveyed`.
    """
    rows = surveyed(search, wall)
    if path is None:
        return choose(rows, search.attempts, 1, folder=search.folder)
    real = Path(os.path.realpath(path))
    file = measured(real)
    info = validate(real)
    if file is not None:
        file = identified(file, {})
    if file is None or not (info.valid or info.is_unknown):
        text = f"{path} {info.why or 'is neither a file nor a folder'}; name another checkpoint"
        raise NotUsableError(text, may_pass=info.is_unreadable and not info.is_missing)
    steps = (row.step for row in rows if row.content == file.content and row.step is not None)
    step = next(steps, step_in_name(real, search.real_folder))
    rows = ledger.chosen_by_person(rows, search.attempts, file, step, wall())
    return CheckpointChoice(rows, (info._replace(valid=True, step=step),))


def passed_over(refused: Sequence[CheckpointInfo]) -> str:
    """``step_90.pt was written after the trouble began at step 50; 2 more``; "" for none."""
    reasons = [f"{info.path.name} {info.why}" for info in refused[:MOST_SHOWN]]
    more = len(refused) - len(reasons)
    if more > 0:
        reasons.append(f"{count(more)} more")
    return "; ".join(reasons)
