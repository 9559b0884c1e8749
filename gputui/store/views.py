"""What the views read: frozen values, one class per thing a person can look at. Unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

GpuViewState = Literal["ok", "stale", "lost", "error"]
Json = Any


@dataclass(frozen=True, slots=True)
class AgentView:
    """The agent as it describes itself in the store. Times are UTC unix seconds; ``gpu_problem`` is one sentence
    saying why there are no GPUs, None when there are."""

    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    ended_at: float | None
    recording: bool
    interval_seconds: float
    source: str | None
    driver_version: str | None
    gpu_problem: str | None
    sampler_state: str
    sampler_silent_seconds: float | None


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process that holds memory of a GPU. ``start_ticks`` is None where the PID is not visible on this machine."""

    pid: int
    user: str | None
    command: str | None
    memory_bytes: int | None
    run_id: str | None
    rank: int | None
    kind: str | None
    start_ticks: int | None
    sm_percent: float | None


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU now: its newest sample joined with its facts, its slow values, its processes and its lease.

    ``state`` is ``stale`` when the newest sample is older than the driver should need; ``age_seconds`` is that
    sample's age. ``run_id`` is who leases the GPU, ``rank`` the rank of that run's process on it. ``processes`` is
    None where the driver gave no list. ``event_text`` is the newest thing that the driver reported by itself.
    """

    uuid: str
    index: int
    name: str
    state: GpuViewState
    at: float | None
    age_seconds: float | None
    utilization_percent: float | None
    memory_utilization_percent: float | None
    memory_used_bytes: int | None
    memory_reserved_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    performance_state: int | None
    throttle_reasons: tuple[str, ...] | None
    facts: Mapping[str, Json]
    slow: Mapping[str, Json]
    processes: tuple[ProcessView, ...] | None
    run_id: str | None
    run_name: str | None
    rank: int | None
    last_seen_at: float
    event_at: float | None
    event_code: int | None
    event_text: str | None


@dataclass(frozen=True, slots=True)
class HostView:
    """The newest sample of the host; ``at`` is UTC unix seconds, rates are bytes per second."""

    at: float
    cpu_percent: float | None
    cpu_count: int | None
    load_1m: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    swap_used_bytes: int | None
    disk_read_bytes_per_second: float | None
    disk_write_bytes_per_second: float | None
    disk_used_bytes: int | None
    disk_total_bytes: int | None
    shm_used_bytes: int | None
    shm_total_bytes: int | None
    network_received_bytes_per_second: float | None
    network_sent_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run and its newest attempt.

    ``params`` are those of the attempt that is running or will start next; the specification keeps the launch's.
    ``gpus`` are the GPUs it leases, or after its end those of its newest attempt. ``spec_json`` is the stored
    specification as text: only pages of one run parse it. A higher ``priority`` goes first in the queue.
    """

    run_id: str
    sequence: int
    name: str
    profile: str
    state: str
    attempt: int
    params: Mapping[str, Json]
    created_at: float
    queued_at: float | None
    not_before: float | None
    started_at: float | None
    ended_at: float | None
    reason: str | None
    waiting_for: str | None
    resume_from: str | None
    attempt_state: str | None
    attempt_started_at: float | None
    attempt_last_step: int | None
    attempt_resumed_step: int | None
    gpus: tuple[str, ...]
    spec_json: str
    priority: int = 0

    @property
    def told_reason(self) -> str | None:
        """The reason, where it says more than the state does."""
        return None if self.reason == self.state else self.reason


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a run: what it was started with and how it ended."""

    run_id: str
    number: int
    state: str
    params: Mapping[str, Json]
    gpus: tuple[str, ...]
    launch: Mapping[str, Json]
    created_at: float
    started_at: float | None
    first_step_at: float | None
    ended_at: float | None
    exit_code: int | None
    exit_signal: int | None
    exit: Mapping[str, Json] | None
    resumed_from: str | None
    resumed_step: int | None
    first_step: int | None
    last_step: int | None
    stop_requested: str | None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """Why an attempt ended, with its evidence."""

    incident_id: int
    run_id: str
    attempt: int
    at: float
    kind: str
    rank: int | None
    step: int | None
    summary: str
    evidence: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What recovery decided about an incident. ``params`` are the parameters that it changed."""

    decision_id: int
    incident_id: int
    run_id: str
    attempt: int
    at: float
    rung: int
    verdict: str
    actions: tuple[Json, ...]
    params: Mapping[str, Json]
    resume_from: str | None
    delay_seconds: float
    reason: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class TransitionView:
    """One move of a run from state to state."""

    transition_id: int
    run_id: str
    at: float
    from_state: str | None
    to_state: str
    cause: str
    actor: str


@dataclass(frozen=True, slots=True)
class EventView:
    """Something that happened. ``kind`` and ``key`` are of `events.EventKind`, None for a sentence of an old gputui."""

    event_id: int
    at: float
    severity: str
    subject: str | None
    run_id: str | None
    attempt: int | None
    kind: str | None
    key: str | None
    message: str


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU over time: equally wide buckets, oldest first; the mean of each, None where nothing was sampled."""

    utilization_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    temperature_celsius: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class HostHistory:
    """The host over time, in the same manner."""

    cpu_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    disk_read_bytes_per_second: tuple[float | None, ...]
    disk_write_bytes_per_second: tuple[float | None, ...]
    network_received_bytes_per_second: tuple[float | None, ...]
    network_sent_bytes_per_second: tuple[float | None, ...]
