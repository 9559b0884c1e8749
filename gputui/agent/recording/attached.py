"""A second recorder of a home: it reads from the database what the first one records, and serves its own outputs."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from gputui.agent.recording.output import FileOutput, Shape, record_shape
from gputui.agent.recording.recorder import Message
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuEvent, SlowTick
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.store import samples as store
from gputui.store.agent import read_agent
from gputui.store.database import open_reader
from gputui.store.rows import named_rows
from gputui.store.runs import active_run_count
from gputui.store.series import GPU, HOST, HOST_ID, SLOW, GpuSample, GpuSlowSample, HostSample, Series

POLL_SECONDS = 0.25  # a line is at most this much later than the sample

_FAST_COLUMNS = [name for name in GpuSample.__struct_fields__ if name not in ("uuid", "detail")]
_SLOW_COLUMNS = [name for name in GpuSlowSample.__struct_fields__ if name != "uuid"]
_HOST_COLUMNS = [name for name in HostSample.__struct_fields__ if name != "at"]


class StoredSamples:
    """What was recorded since a time (UTC unix seconds), as the messages of a sampler, and the newest of each kind."""

    def __init__(self, connection: sqlite3.Connection, since: float) -> None:
        self._connection = connection
        self._since = since
        self._read_to: dict[tuple[str, int], float] = {}
        self._events_to = since
        self.indices: dict[str, int] = {}
        self.fast: dict[str, GpuSample] = {}
        self.host: HostSample | None = None

    def read(self) -> list[Message]:
        """The messages since the last call. Raises sqlite3.Error."""
        gpus = self._connection.execute("SELECT gpu_id, uuid, position FROM gpus").fetchall()
        self.indices = {uuid: position for _, uuid, position in gpus}
        fast = defaultdict[float, list[GpuSample]](list)
        slow = defaultdict[float, list[GpuSlowSample]](list)
        for gpu_id, uuid, _ in gpus:
            for at, values in self._newer(GPU, gpu_id, _FAST_COLUMNS):
                if values["throttle_reasons"] is not None:
                    values["throttle_reasons"] = json.loads(values["throttle_reasons"])
                self.fast[uuid] = msgspec.convert({**values, "uuid": uuid}, GpuSample, strict=False)
                fast[at].append(self.fast[uuid])
            for at, values in self._newer(SLOW, gpu_id, _SLOW_COLUMNS):
                slow[at].append(msgspec.convert({**values, "uuid": uuid}, GpuSlowSample, strict=False))
        messages: list[Message] = [FastTick(at, tuple(samples)) for at, samples in fast.items()]
        messages += [SlowTick(at, tuple(readings)) for at, readings in slow.items()]
        for at, values in self._newer(HOST, HOST_ID, _HOST_COLUMNS):
            self.host = HostSample(at, **values)
            messages.append(self.host)
        for row in named_rows(
            self._connection,
            "SELECT at, uuid, event, code, text FROM gpu_events WHERE at > ? ORDER BY at",
            [self._events_to],
        ):
            self._events_to = row["at"]
            messages.append(GpuEvent(**row))
        return sorted(messages, key=lambda message: message.at)

    def _newer(self, series: Series, gpu_id: int, columns: list[str]) -> list[tuple[float, dict[str, Any]]]:
        key = series.table, gpu_id
        begin = math.nextafter(self._read_to.get(key, self._since), math.inf)
        rows = store.between(self._connection, series, gpu_id, columns, (begin, math.inf))
        if rows:
            self._read_to[key] = rows[-1][0]
        return [(at, dict(zip(columns, values, strict=True))) for at, *values in rows]

    def shape(self) -> Shape:
        """The machine's current state, as `record_shape`. Raises sqlite3.Error."""
        agent = read_agent(self._connection)
        problem = None if agent is None else agent.gpu_problem
        runs = active_run_count(self._connection)
        return record_shape(
            self.indices, self.fast.values(), self.host, gpu_problem=problem, active_runs=runs, now=time.time()
        )


def follow(
    workspace: Workspace,
    recorder: ProcessIdentity,
    *,
    is_over: Callable[[], bool],
    show: Callable[[StoredSamples], None],
    samples: FileOutput | None,
) -> bool:
    """Hand on what ``recorder`` stores, until that process has ended (True) or ``is_over`` says so.

    ``show`` is called after each look, once there is a sample. Raises StoreError, sqlite3.Error.
    """
    with closing(open_reader(workspace.database)) as connection:
        stored = StoredSamples(connection, time.time())
        while not is_over():
            # What it stored last is read once more after its end.
            lives = is_alive(recorder)
            messages = stored.read()
            if samples is not None:
                samples.take(messages, stored.indices)
            if stored.host is not None:
                show(stored)
            if not lives:
                return True
            time.sleep(POLL_SECONDS)
    return False
