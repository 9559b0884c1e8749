"""The watch over what an attempt's processes and GPUs do while it makes no progress.

Pure; times are monotonic seconds unless stated.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.recovery.watch.hangs import (
    BUSY_NETWORK_BYTES_PER_SECOND,
    Doing,
    GpuActivity,
    RankActivity,
    doing,
    is_stuck,
    judge,
    younger_than,
)
from gputui.recovery.watch.rules import Observation
from gputui.recovery.watch.silence import ProgressSilence
from gputui.runs.process_readings import ProcessReading
from gputui.store.series import GpuSample

LOOK_SECONDS = 2.0
POWER_SAMPLES = 200  # more than three minutes, one a second
# How long every check must find the ranks stuck, or `hang_after` if that is shorter; and the same
# if a check during this silence found them at work, because work has pauses.
STUCK_SECONDS = 10.0
STUCK_AFTER_WORK_SECONDS = 24.0
# A silence counts from when the last step was read and looked at, on a busy machine so much later.
STEP_NOTICED_SECONDS = 5.0
# Heartbeats come once in a quarter of a minute.
TRAFFIC_SECONDS = 30.0


@dataclass(slots=True)
class ProcessSnapshot:
    """The processes of an attempt at one time.

    Attributes:
        at: monotonic seconds.
        ranks: the processes of each rank; if none has a rank, all of them as rank None.
        others: the rest, such as torchrun.
        size: the number of ranks.
        is_closed: no rank has a connection to another machine or to a program that is not the attempt's.
        outside_bytes: what such connections of any process have moved, by connection.
    """

    at: float
    ranks: dict[int | None, list[ProcessReading]]
    others: list[ProcessReading]
    size: int
    is_closed: bool = False
    outside_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Private memory of all processes."""
        groups = (*self.ranks.values(), self.others)
        return sum(process.private_bytes or 0 for group in groups for process in group)


@dataclass(slots=True)
class ActivityWatch:
    """The activity of one attempt during a silence, snapshot by snapshot.

    Attributes:
        gpus: the UUIDs of the attempt's GPUs.
        is_patient: an earlier attempt was ended for a hang: waiting ranks get all the time that history explains.
        last: the newest snapshot.
        stuck_since: since when every check found the attempt stuck.
        has_worked: a check during this silence found it at work.
        together_at: the last check that found several ranks at work.
        was_open: a check during this silence found a connection to a program of another.
        traffic: the newest snapshots' bytes on such connections, with their times.
        output: the state of the attempt's logs at the last look at them.
        powers: the power of each GPU (watts) while the attempt made progress.
    """

    gpus: Sequence[str]
    is_patient: bool = False
    last: ProcessSnapshot | None = None
    stuck_since: float | None = None
    has_worked: bool = False
    together_at: float = -math.inf
    was_open: bool = False
    traffic: deque[tuple[float, Mapping[int, int]]] = field(default_factory=deque)
    output: object = None
    powers: dict[str, deque[float]] = field(default_factory=dict)

    def restart(self) -> None:
        """Begin with a new silence."""
        self.forget_looks()
        self.has_worked = False
        self.was_open = False
        self.together_at = -math.inf

    def forget_looks(self) -> None:
        """Forget the last snapshot, with which a later one cannot be compared."""
        self.last = None
        self.stuck_since = None
        self.output = None
        self.traffic.clear()

    def note_power(self, samples: Mapping[str, GpuSample]) -> None:
        """Record the GPUs' power while the run makes progress."""
        for uuid in self.gpus:
            if uuid in samples and (watts := samples[uuid].power_watts) is not None:
                self.powers.setdefault(uuid, deque(maxlen=POWER_SAMPLES)).append(watts)

    def assess(
        self,
        snapshot: ProcessSnapshot,
        samples: Mapping[str, GpuSample],
        quiet: ProgressSilence,
        hang_after: float,
        *,
        first_line_at: float,
        had_lines: bool,
    ) -> tuple[Observation | None, bool]:
        """Judge a silence by what the processes did since the last snapshot.

        Args:
            samples: the current ones of the attempt's GPUs.
            hang_after: the policy's, in seconds.
            first_line_at: when the first line arrived: what was there before is what trains.
            had_lines: the attempt, or one before it, has written metrics.

        Returns:
            The verdict, and whether it is certain: a hang is once every check found the attempt stuck for long enough.
        """
        before = self.last
        self.last = snapshot
        if before is None:
            return None, False
        silent_seconds = min(quiet.seconds + STEP_NOTICED_SECONDS, snapshot.at - first_line_at)
        doings = self._doings(before, snapshot, samples, silent_seconds)
        if sum(not what.is_stuck for what in doings.values()) > 1:
            self.together_at = snapshot.at
        self.was_open = self.was_open or not snapshot.is_closed
        processes = itertools.chain.from_iterable(snapshot.ranks.values())
        activity = RankActivity(
            doings,
            launcher_stopped=any(process.state == "T" for process in snapshot.others),
            meets=had_lines or snapshot.size > 1,
            alone_seconds=snapshot.at - self.together_at,
            is_closed=not self.was_open,
            is_patient=self.is_patient,
            exchanges=self._exchanges(snapshot),
            has_program=any(process.is_program for process in younger_than(processes, silent_seconds)),
        )
        verdict = judge(quiet, activity)
        if verdict is None or not is_stuck(verdict):
            self.stuck_since = None
            self.has_worked = self.has_worked or verdict is not None
            return verdict, verdict is not None
        if self.stuck_since is None:
            self.stuck_since = snapshot.at
        needed_seconds = min(STUCK_SECONDS, hang_after)
        if not quiet.is_overdue:
            needed_seconds = verdict.hold_seconds
        elif self.has_worked:
            needed_seconds = min(STUCK_AFTER_WORK_SECONDS, hang_after)
        is_time = quiet.is_overdue or quiet.may_be_evident
        return verdict, is_time and snapshot.at - self.stuck_since >= needed_seconds

    def _doings(
        self,
        before: ProcessSnapshot,
        snapshot: ProcessSnapshot,
        samples: Mapping[str, GpuSample],
        silent_seconds: float,
    ) -> dict[int | None, Doing]:
        """What each rank did between two snapshots."""
        ranks: Collection[int | None] = snapshot.ranks
        if snapshot.size > 1:
            ranks = range(snapshot.size)
        return {
            rank: doing(
                before.ranks.get(rank, ()),
                snapshot.ranks.get(rank, ()),
                snapshot.at - before.at,
                self._gpu_activity(rank, samples),
                silent_seconds,
                is_only=snapshot.size == 1,
            )
            for rank in ranks
        }

    def _exchanges(self, snapshot: ProcessSnapshot) -> bool:
        """Return whether connections beyond the attempt have moved data for some time."""
        self.traffic.append((snapshot.at, snapshot.outside_bytes))
        while snapshot.at - self.traffic[0][0] > TRAFFIC_SECONDS:
            self.traffic.popleft()
        begin, before = self.traffic[0]
        moved = sum(count - before.get(inode, 0) for inode, count in snapshot.outside_bytes.items())
        return moved >= BUSY_NETWORK_BYTES_PER_SECOND * max(snapshot.at - begin, LOOK_SECONDS)

    def _gpu_activity(self, rank: int | None, samples: Mapping[str, GpuSample]) -> GpuActivity | None:
        uuids = self.gpus
        # A single process may use any of its GPUs: the busiest counts.
        if rank is not None and uuids:
            uuids = (uuids[rank % len(uuids)],)
        readings = [samples[uuid] for uuid in uuids if uuid in samples]
        if not readings:
            return None
        sample = max(readings, key=lambda reading: reading.utilization_percent or 0.0)
        share = None
        watts = sample.power_watts
        powers = self.powers.get(sample.uuid)
        if powers and watts is not None and (usual := statistics.median(powers)) > 0:
            share = watts / usual
        return GpuActivity(sample.utilization_percent, sample.memory_utilization_percent, share)
