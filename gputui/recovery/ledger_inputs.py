"""What the ledger of checkpoints is computed from: files of a folder, attempts of a run, and their numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gputui.runs.spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow, Neighbour
from gputui.store.runs import Run

# A run without metrics that lived this long has finished its setup.
WORKED_SECONDS = 60.0
# A file is dated by the kernel's last tick, of which there are 100 to 1000 a second, and a line without a time gets the
# time when it is read. So a line that was written before a file may be dated this much later.
FILE_CLOCK_SECONDS = 0.01
LINE_CLOCK_SECONDS = 1.0

Rows = tuple[CheckpointRow, ...]


class FoundCheckpoint(NamedTuple):
    """A file or folder in a checkpoint folder; see `gputui.recovery.checkpoints.look_in`. ``changed_ns`` is the last
    change of its inode (st_ctime_ns of stat(2)), which copies do not preserve; None if unknown. A folder's time and
    size are those of the files that each save writes, if it has any; ``with_all_files`` is its stamp with all others.
    """

    path: str
    modified_ns: int
    size_bytes: int | None
    changed_ns: int | None = None
    with_all_files: tuple[int, int] | None = None

    @property
    def modified_at(self) -> float:
        """UTC unix seconds."""
        return self.modified_ns / 1e9

    @property
    def stamp(self) -> tuple[int, int | None]:
        """Time and size, which a rename preserves."""
        return (self.modified_ns, self.size_bytes)

    @property
    def total_bytes(self) -> int | None:
        """The size with all files of a folder."""
        return self.size_bytes if self.with_all_files is None else self.with_all_files[1]

    def has_stamp(self, stamp: tuple[int, int | None]) -> bool:
        """Whether it has a stored stamp. That of a folder is by all its files in a ledger of version 0.1."""
        return stamp in (self.stamp, self.with_all_files)


class AttemptSpan(Struct, frozen=True):
    """An attempt as the ledger sees it.

    Attributes:
        begun_at, ended_at: UTC unix seconds; the end is None while it lives.
        resumed_from: the path of its checkpoint; None if it began from the start.
        has_worked: whether it made a step.
        was_scanned_at_end: whether the ledger has the files that were there at its end.
        gpu_count: attempts with as many GPUs have as many ranks.
    """

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool
    was_scanned_at_end: bool = True
    gpu_count: int = 0


def attempt_spans(attempts: Sequence[Attempt], *, has_metrics: bool, now: float) -> tuple[AttemptSpan, ...]:
    """The attempts of a run, oldest first. ``now`` is UTC unix seconds."""
    spans = []
    for row in sorted(attempts, key=lambda row: row.number):
        started_at = row.started_at if row.started_at is not None else row.created_at
        ran_seconds = (row.ended_at if row.ended_at is not None else now) - started_at
        has_worked = row.last_step is not None or (not has_metrics and ran_seconds >= WORKED_SECONDS)
        spans.append(
            AttemptSpan(
                row.number,
                row.created_at,
                row.ended_at,
                row.resumed_from,
                row.last_step,
                has_worked,
                gpu_count=len(row.gpus),
            )
        )
    return tuple(spans)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[AttemptSpan, ...]:
    """The same for a view, whose run has the specification as text."""
    spec = known_spec(run)
    return attempt_spans(attempts, has_metrics=spec is None or bool(spec.metrics), now=now)


class NumericTrouble(NamedTuple):
    """Where an attempt's loss became NaN or jumped, as far as its metrics tell.

    Attributes:
        began_at: UTC unix seconds, if its steps restart, such as steps counted per epoch; else None.
        sound_until: the last step before with a sound loss, -1 if there is none; None if the lines have no loss.
        began_sound: whether the attempt itself had a sound loss before, which shows that its checkpoint was sound.
        latest: the latest step at which a checkpoint may have been written, by path.
    """

    began_at: float | None = None
    sound_until: int | None = None
    latest: Mapping[str, int] = MappingProxyType({})
    began_sound: bool = False


UNKNOWN_TROUBLE = NumericTrouble()


class CheckpointSearch(Struct, frozen=True):
    """Input of a search.

    Attributes:
        database: the store, read for the times of steps.
        rows: the run's ledger.
        attempts: the run's attempts, oldest first.
        neighbours: attempts of the home's other runs in the same folder.
        incidents: kind and step by attempt.
        rebuilt: attempts that are older than the ledger.
    """

    database: Path
    run_id: str
    folder: Path
    pattern: str
    rows: Rows
    attempts: tuple[AttemptSpan, ...]
    neighbours: tuple[Neighbour, ...] = ()
    incidents: Mapping[int, tuple[str, int | None]] = msgspec.field(default_factory=dict)
    rebuilt: frozenset[int] = frozenset()

    @property
    def real_folder(self) -> Path:
        """Where the folder is now, with links resolved: scripts let a link lead to another folder at each start."""
        return Path(os.path.realpath(self.folder))

    @property
    def home(self) -> Path:
        """The home's real state folder, which identifies it to other homes."""
        return Path(os.path.realpath(self.database.parent))
