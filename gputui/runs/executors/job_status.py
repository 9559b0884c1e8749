"""The status of an attempt's job at its target, and how long it has waited and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

EndedBy = Literal["preempted", "time_limit", "node_fail", "cancelled", "host_oom"]


class JobStatus(Struct, frozen=True):
    """The status of a job at the target.

    Attributes:
        job: its number or name there.
        state: as in placement.json.
        reason: why it waits or has ended, in the target's words.
        expected_start: when the target means to start it (UTC unix seconds).
        nodes: the names of the nodes that it got.
        limit_at: when the target's time limit ends it (UTC unix seconds).
        ended_by: what the target ended it for; None if it did not.
    """

    job: str
    state: str
    reason: str | None = None
    expected_start: float | None = None
    nodes: tuple[str, ...] = ()
    limit_at: float | None = None
    ended_by: EndedBy | None = None


class JobClock(Struct):
    """How long a job has waited and run, by the states that its target reported.

    Attributes:
        counted_at: the contact up to which it is counted (UTC unix seconds); None after one that failed: what
            happened until the next is unknown.
    """

    queued_seconds: float = 0.0
    ran_seconds: float = 0.0
    counted_at: float | None = None

    @classmethod
    def of(cls, placed: Mapping[str, Any] | None) -> JobClock:
        """The clock as a former runner of the attempt left it in placement.json."""
        if placed is None:
            return cls()
        return cls(placed["queued_seconds"], placed["ran_seconds"])

    def count(self, state: str | None, now: float) -> None:
        """Add the time since the last contact, when the job was in a state."""
        elapsed = 0.0 if self.counted_at is None else max(0.0, now - self.counted_at)
        if state in ("pending", "requeued"):
            self.queued_seconds += elapsed
        elif state in ("configuring", "running", "ending"):
            self.ran_seconds += elapsed
        self.counted_at = now

    def corrected_by(self, recorded: Sequence[float | None]) -> float:
        """How long the job has run, given how long each of its starts did by the target's records.

        These count alone once there is one of each start; until then as the least.
        """
        complete = [seconds for seconds in recorded if seconds is not None]
        if len(complete) == len(recorded):
            return sum(complete)
        return max(self.ran_seconds, sum(complete))


def recorded_seconds(exit_record: Mapping[str, Any] | None) -> float | None:
    """How long a start of a job ran by the shim's record; None without one."""
    begin, end = ((exit_record or {}).get(name) for name in ("started_at", "ended_at"))
    if not isinstance(begin, float) or not isinstance(end, float):
        return None
    return max(0.0, end - begin)


def ended_by_itself(exit_record: Mapping[str, Any] | None) -> bool:
    """True if an attempt has ended unasked, which no status of its job can change."""
    return exit_record is not None and not exit_record.get("stop_requested")
