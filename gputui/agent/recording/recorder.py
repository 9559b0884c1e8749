"""The recorder: writes the sampler's messages to the hardware history and keeps the newest in
memory for the scheduler."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from msgspec.structs import asdict

from gputui.machine.gpu_model import FastTick, GpuEvent, GpuFacts, GpuProcess, Inventory, ProcessTick, SlowTick
from gputui.machine.procfs import read_stat
from gputui.runs.processes import Owner, owner_of
from gputui.runs.repository import transaction
from gputui.store import series
from gputui.store.database import is_locked
from gputui.store.events import EventKind, NewEvent, Severity, add_event
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

log = logging.getLogger(__name__)

Message = Inventory | FastTick | SlowTick | ProcessTick | GpuEvent | HostSample

# Messages kept while the database cannot be written; older ones are lost.
BACKLOG_MESSAGES = 1200

# A GPU on which every kernel fails reports thousands of XIDs; the newest suffice.
REPORTED_KEPT = 256

# Smaller changes of a process's memory do not make a new set of processes.
MEMORY_GRAIN_BYTES = 64 << 20

_PROCESS_FIELDS = list(GpuProcess.__struct_fields__)
_HOST_COLUMNS = list(HostSample.__struct_fields__)
_FAST_COLUMNS = [name for name in GpuSample.__struct_fields__ if name not in ("uuid", "detail", "throttle_reasons")]
_SLOW_COLUMNS = [name for name in GpuSlowSample.__struct_fields__ if name != "uuid"]


def _insert(table: str, columns: list[str]) -> str:
    return f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


_INSERT_HOST = _insert(series.HOST.table, _HOST_COLUMNS)
_INSERT_FAST = _insert(series.GPU.table, ["at", "gpu_id", *_FAST_COLUMNS, "throttle_reasons"])
_INSERT_SLOW = _insert(series.SLOW.table, ["at", "gpu_id", *_SLOW_COLUMNS])


@lru_cache(maxsize=4096)
def _owner(pid: int, start_ticks: int, runs: str) -> Owner | None:
    """Run and rank of a process, from its environment tag or its ancestors; None if it belongs to no
    run in the folder ``runs``. Cached, because neither changes while the process lives."""
    owner = owner_of(pid, runs)
    stat = read_stat(pid)
    # Read after the owner: the PID may have been reused.
    if stat is not None and stat.start_ticks == start_ticks:
        return owner
    return None


def _digits(name: str) -> int | None:
    """Decimals that a value is stored with, by the resolution of its source; None if it is not a
    float."""
    if name.endswith("_bytes_per_second"):
        return 0
    if name in ("cpu_percent", "load_1m"):
        return 2
    if name == "at" or series.GPU.columns.get(name) or series.SLOW.columns.get(name):
        return 3
    return None


_DIGITS = {name: _digits(name) for name in ("at", *_HOST_COLUMNS, *_FAST_COLUMNS, *_SLOW_COLUMNS)}


def _stored(sample: HostSample | GpuSample | GpuSlowSample, name: str) -> object:
    value = getattr(sample, name)
    digits = _DIGITS[name]
    if value is None or digits is None:
        return value
    return round(value, digits)


class Recorder:
    """Writes hardware messages in one transaction per batch, and keeps the newest of each kind in
    memory."""

    def __init__(self, connection: sqlite3.Connection, runs: Path, wall: Callable[[], float]) -> None:
        self._connection = connection
        self._wall = wall
        self._waiting: deque[Message] = deque(maxlen=BACKLOG_MESSAGES)
        self._ids: dict[str, int] = dict(connection.execute("SELECT uuid, gpu_id FROM gpus").fetchall())
        self._process_sets: dict[str, object] = {}
        self._runs = str(runs)
        # Since when the database cannot be written (UTC unix seconds), and why.
        self._stopped: tuple[float, str] | None = None
        self.inventory: Inventory | None = None
        self.fast: dict[str, GpuSample] = {}
        self.fast_at = 0.0
        self.processes: dict[str, tuple[GpuProcess, ...] | None] = {}
        self.host: HostSample | None = None
        self.slow: dict[str, GpuSlowSample] = {}
        self.reported: deque[GpuEvent] = deque(maxlen=REPORTED_KEPT)
        """Driver events that the lifecycle has not consumed yet."""

    @property
    def facts(self) -> dict[str, GpuFacts]:
        if self.inventory is None:
            return {}
        return {gpu.uuid: gpu for gpu in self.inventory.gpus}

    @property
    def is_waiting(self) -> bool:
        """True if messages are not stored yet."""
        return bool(self._waiting)

    def owner(self, process: GpuProcess) -> Owner | None:
        """The run of this home that a process belongs to."""
        if process.start_ticks is None:
            return None
        return _owner(process.pid, process.start_ticks, self._runs)

    def memory_of(self, pid: int, start_ticks: int) -> int:
        """The memory (bytes) that a process holds on all GPUs."""
        total_bytes = 0
        for processes in self.processes.values():
            for process in processes or ():
                if (process.pid, process.start_ticks) == (pid, start_ticks):
                    total_bytes += process.memory_bytes or 0
        return total_bytes

    def take(self, messages: Iterable[Message]) -> None:
        """Queue messages for `flush`, and keep the newest of each kind."""
        for message in messages:
            if isinstance(message, FastTick):
                self.fast = {sample.uuid: sample for sample in message.gpus}
                self.fast_at = message.at
            elif isinstance(message, HostSample):
                self.host = message
            elif isinstance(message, ProcessTick):
                self.processes = dict(message.processes)
            elif isinstance(message, SlowTick):
                self.slow = {sample.uuid: sample for sample in message.gpus}
            elif isinstance(message, GpuEvent):
                self.reported.append(message)
            elif isinstance(message, Inventory):
                self.inventory = message
            self._waiting.append(message)

    def flush(self, *, heartbeat: bool = False) -> bool:
        """Write queued messages and, with ``heartbeat``, that the agent is alive. If the database
        cannot be written, return False and keep the queue."""
        if not self._waiting:
            return True
        ids = dict(self._ids)
        sets = dict(self._process_sets)
        try:
            with transaction(self._connection):
                for message in self._waiting:
                    self._write(message)
                if heartbeat:
                    self._connection.execute("UPDATE agent SET heartbeat_at = ?", (self._wall(),))
                if self._stopped is not None:
                    at, why = self._stopped
                    text = f"the database could not be written for {self._wall() - at:.0f} s ({why})"
                    add_event(
                        self._connection, NewEvent("recording_interrupted", text, severity="warning"), now=self._wall()
                    )
        except sqlite3.OperationalError as error:
            self._ids = ids
            self._process_sets = sets
            if self._stopped is None and not is_locked(error):
                self._stopped = self._wall(), str(error)
                log.warning("recording stopped (%s); runs continue; it restarts by itself", error)
            return False
        self._waiting.clear()
        self._stopped = None
        return True

    def _write(self, message: Message) -> None:
        match message:
            case FastTick():
                self._write_fast(message)
            case HostSample():
                self._connection.execute(_INSERT_HOST, [_stored(message, name) for name in _HOST_COLUMNS])
            case SlowTick():
                self._write_slow(message)
            case ProcessTick():
                self._write_processes(message)
            case Inventory():
                self._write_inventory(message)
            case GpuEvent():
                self._write_event(message)

    def _write_fast(self, tick: FastTick) -> None:
        rows = []
        at = round(tick.at, 3)
        for sample in tick.gpus:
            gpu_id = self._ids.get(sample.uuid)
            if gpu_id is not None:
                reasons = None if sample.throttle_reasons is None else json.dumps(sample.throttle_reasons)
                rows.append((at, gpu_id, *(_stored(sample, name) for name in _FAST_COLUMNS), reasons))
        self._connection.executemany(_INSERT_FAST, rows)

    def _write_slow(self, tick: SlowTick) -> None:
        for sample in tick.gpus:
            gpu_id = self._ids.get(sample.uuid)
            if gpu_id is not None:
                values = [_stored(sample, name) for name in _SLOW_COLUMNS]
                self._connection.execute(_INSERT_SLOW, (round(tick.at, 3), gpu_id, *values))
                self._connection.execute(
                    "UPDATE gpus SET slow = ?, slow_at = ?, last_seen_at = ? WHERE gpu_id = ?",
                    (json.dumps(dict(zip(_SLOW_COLUMNS, values, strict=True))), tick.at, tick.at, gpu_id),
                )

    def _write_processes(self, tick: ProcessTick) -> None:
        for uuid, processes in tick.processes.items():
            gpu_id = self._ids.get(uuid)
            if gpu_id is None:
                continue
            text = None
            grains = None
            if processes is not None:
                rows = []
                for process in processes:
                    run_id, rank, *_ = self.owner(process) or (None, None)
                    values = {name: getattr(process, name) for name in _PROCESS_FIELDS}
                    rows.append({**values, "run_id": run_id, "rank": rank})
                text = json.dumps(rows)
                grains = [(process.pid, (process.memory_bytes or 0) // MEMORY_GRAIN_BYTES) for process in processes]
            self._connection.execute(
                "UPDATE gpus SET processes = ?, processes_at = ? WHERE gpu_id = ?", (text, tick.at, gpu_id)
            )
            if uuid not in self._process_sets or self._process_sets[uuid] != grains:
                self._process_sets[uuid] = grains
                self._connection.execute(
                    "INSERT OR IGNORE INTO gpu_process_sets (at, gpu_id, processes) VALUES (?, ?, ?)",
                    (tick.at, gpu_id, text),
                )

    def _write_inventory(self, inventory: Inventory) -> None:
        self._connection.execute("UPDATE gpus SET present = 0")
        for gpu in inventory.gpus:
            self._connection.execute(
                "INSERT INTO gpus (uuid, position, name, facts, first_seen_at, last_seen_at) "
                "VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (uuid) DO UPDATE SET position = excluded.position, name = excluded.name, "
                "facts = excluded.facts, present = 1, last_seen_at = excluded.last_seen_at",
                (gpu.uuid, gpu.index, gpu.name, json.dumps(asdict(gpu)), inventory.at, inventory.at),
            )
        self._ids = dict(self._connection.execute("SELECT uuid, gpu_id FROM gpus").fetchall())
        self._connection.execute(
            "UPDATE agent SET source = ?, driver_version = ?, cuda_version = ?, gpu_problem = ?",
            (inventory.source, inventory.driver_version, inventory.cuda_version, inventory.problem),
        )

    def _write_event(self, event: GpuEvent) -> None:
        self._connection.execute(
            "INSERT INTO gpu_events (at, uuid, event, code, text) VALUES (?, ?, ?, ?, ?)",
            (event.at, event.uuid, event.event, event.code, event.text),
        )
        facts = self.facts.get(event.uuid)
        subject = event.uuid
        if facts is not None:
            subject = f"GPU {facts.index}"
        reported: dict[str, tuple[EventKind, str]] = {
            "xid": ("gpu_xid", f"XID {event.code}"),
            "lost": ("gpu_lost", "is lost"),
            "returned": ("gpu_returned", "is back"),
        }
        kind, text = reported[event.event]
        if event.text:
            # The driver's text of an XID may begin with its number.
            text = event.text if event.text.startswith(text) else f"{text}: {event.text}"
        severity: Severity = "info" if event.event == "returned" else "error"
        add_event(
            self._connection, NewEvent(kind, text, key=event.uuid, severity=severity, subject=subject), now=event.at
        )
