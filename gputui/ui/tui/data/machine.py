"""Reading the machine's part of a snapshot: histories, quarantine, one GPU, alerts, full disk, idle GPUs."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.core.units import count_of
from gputui.runs import notices
from gputui.runs.scheduler import WaitingRuns, read_waiting_runs
from gputui.store import alerts, queue
from gputui.store.agent import AgentView
from gputui.store.alerts import AlertView
from gputui.store.hardware import (
    GpuView,
    gpu_events,
    gpu_history,
    host_history,
    idleness,
    leased_since,
    memory_temperature_history,
    present_since,
    quarantined,
    xid_counts,
)
from gputui.store.rollups import GpuHistory, HostHistory
from gputui.ui.views.snapshot import HISTORY_BUCKETS, HISTORY_SECONDS, GpuPage, Interest, MachineState

GPU_BUCKETS = 120  # about two for each column of a chart

EVENTS_OF_A_GPU = 40  # more than a screen has lines for

MOST_RESOLVED = 200  # more than anybody scrolls through

LEAST_BYTES = 1 << 20
"""Least free space that the database needs for a transaction and its log."""

SILENT_SECONDS = 3.0
"""An agent that can write stores a heartbeat within its interval plus this."""

_AFTER_SAMPLE = 1e-3
"""Buckets exclude their end; so many seconds later they include a sample taken at the very moment."""

_BUCKET_SECONDS = HISTORY_SECONDS / HISTORY_BUCKETS


class StoreReading(NamedTuple):
    """One read of the store.

    Attributes:
        interest: what is read.
        now: the present, UTC unix seconds.
        at: the past moment that is shown, UTC unix seconds; None for the present.
    """

    connection: sqlite3.Connection
    interest: Interest
    now: float
    at: float | None

    @property
    def moment(self) -> float:
        """The moment that is shown."""
        if self.at is None:
            return self.now
        return self.at


def machine_state(reading: StoreReading, agent: AgentView | None, gpus: Sequence[GpuView]) -> MachineState:
    """The state of the machine. Of a past moment, quarantines and pauses that have ended since are not stored, and the
    queue is not read. Raises sqlite3.Error."""
    connection = reading.connection
    failed = quarantined(connection)
    pause = queue.pause(connection)
    waiting = WaitingRuns()
    if reading.at is None:
        waiting = read_waiting_runs(connection, reading.now)
    else:
        failed = {uuid: quarantine for uuid, quarantine in failed.items() if quarantine.since <= reading.at}
        if pause is not None and pause.at > reading.at:
            pause = None
    xids = xid_counts(connection, reading.moment)
    promised: Mapping[str, str] = {}
    if waiting.runs:
        # Imported on first use: mostly the queue is empty.
        from gputui.profiles.situation import situation_of

        situation = situation_of(agent, gpus, failed, (), waiting)
        if situation is not None:
            promised = situation.promised
    return MachineState(failed, pause, xids, waiting, promised)


class GpuPageReader:
    """Reads the page of one GPU; its history only when a new bucket is full."""

    def __init__(self) -> None:
        self._known: tuple[str, float, int] | None = None
        self._history: GpuHistory | None = None
        self._memory: tuple[float | None, ...] = ()

    def read(self, connection: sqlite3.Connection, uuid: str, span_seconds: float, now: float) -> GpuPage:
        """The page of a GPU at ``now`` (UTC unix seconds). Raises sqlite3.Error."""
        bucket_seconds = span_seconds / GPU_BUCKETS
        bucket = int(now // bucket_seconds)
        if (uuid, span_seconds, bucket) != self._known:
            end = bucket * bucket_seconds
            start = end - span_seconds
            self._history = gpu_history(connection, start, end, GPU_BUCKETS, uuid).get(uuid)
            self._memory = memory_temperature_history(connection, uuid, start, end, GPU_BUCKETS)
            self._known = (uuid, span_seconds, bucket)
        return GpuPage(
            uuid=uuid,
            span_seconds=span_seconds,
            history=self._history,
            memory_temperatures=self._memory,
            events=tuple(gpu_events(connection, uuid, now, EVENTS_OF_A_GPU)),
            leased_since=leased_since(connection, uuid),
        )


def resolved_alerts(connection: sqlite3.Connection, at: float | None = None) -> tuple[AlertView, ...]:
    """The newest resolved alerts now, or at a past moment. Raises sqlite3.Error."""
    return tuple(alerts.cleared(connection, MOST_RESOLVED, at))


def full_disk_words(state: Path, agent: AgentView | None, now: float) -> str | None:
    """A sentence if nothing is recorded because the disk is full; else None. ``now`` is UTC unix seconds."""
    if agent is None or now - agent.heartbeat_at <= SILENT_SECONDS + agent.interval_seconds:
        return None
    try:
        disk = os.statvfs(state)
    except OSError:
        return None
    is_full = disk.f_bavail * disk.f_frsize < LEAST_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    if not is_full:
        return None
    return (
        f"The disk of {state} is full: nothing is recorded until you free some space. The values shown are from "
        f"{time.strftime('%a %H:%M:%S', time.localtime(agent.heartbeat_at))}; runs continue."
    )


def unsent_words(connection: sqlite3.Connection) -> str | None:
    """A sentence if recipients of messages could not be reached; else None. Raises sqlite3.Error."""
    pending = notices.pending(connection)
    problems = {message.recipient: message.problem for message in pending if message.problem is not None}
    if not problems:
        return None
    waiting = [message for message in pending if message.recipient in problems]
    count = count_of(len(waiting), "message")
    since = time.strftime("%a %H:%M", time.localtime(waiting[0].at))
    who = ", ".join(dict.fromkeys(message.label for message in waiting))
    return f"{count} to {who} cannot be sent since {since}: {problems[waiting[0].recipient]}. It is tried again."


Histories = tuple[Mapping[str, GpuHistory], HostHistory | None]
"""The short histories of the GPUs, by their UUIDs, and of the host."""


class ShortHistoryReader:
    """Reads the short histories. Those of the present end with the last full bucket, and are kept until the next."""

    def __init__(self) -> None:
        self._bucket = -1
        self._newest: Histories = {}, None

    def read(self, reading: StoreReading) -> Histories:
        """The histories that end at the moment of a reading. Raises sqlite3.Error."""
        if reading.at is not None:
            return self._until(reading.connection, reading.at + _AFTER_SAMPLE)
        bucket = int(reading.now // _BUCKET_SECONDS)
        if bucket != self._bucket:
            self._newest = self._until(reading.connection, bucket * _BUCKET_SECONDS)
            self._bucket = bucket
        return self._newest

    def _until(self, connection: sqlite3.Connection, end: float) -> Histories:
        span = end - HISTORY_SECONDS, end, HISTORY_BUCKETS
        return gpu_history(connection, *span), host_history(connection, *span)


class IdleReader:
    """Keeps since when each GPU has been idle, so that each read needs only the newest samples."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def read(
        self, connection: sqlite3.Connection, gpus: Sequence[GpuView], now: float
    ) -> Mapping[tuple[str, int], float]:
        """Since when (UTC unix seconds) each process has held memory of an idle GPU, by the GPU's UUID and the PID.
        Raises sqlite3.Error."""
        idle_since: dict[tuple[str, int], float] = {}
        for gpu in gpus:
            pids = [process.pid for process in gpu.processes or () if process.memory_bytes]
            if not pids or gpu.state != "ok" or gpu.utilization_percent != 0:
                self._known.pop(gpu.uuid, None)
                continue
            idle = self._idle_since(connection, gpu.uuid, now)
            if idle is not None:
                present = present_since(connection, gpu.uuid)
                idle_since |= {(gpu.uuid, pid): max(idle, present[pid]) for pid in pids if pid in present}
        return idle_since

    def _idle_since(self, connection: sqlite3.Connection, uuid: str, now: float) -> float | None:
        since, read_at = self._known.pop(uuid, (None, 0.0))
        newest = idleness(connection, uuid, read_at, now)
        if since is None or newest.was_busy:
            since = newest.since
        if since is not None:
            self._known[uuid] = (since, now)
        return since
