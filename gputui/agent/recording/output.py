"""The sampler's messages as lines of NDJSON or of one CSV table, and the machine's state as one
line.

A line describes a GPU, the host, or a driver event at one time. Its ``kind`` is ``gpu``,
``gpu_slow``, ``host`` or ``gpu_event``. An unknown value is null, or an empty cell.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from msgspec.structs import asdict

from gputui.agent.recording.recorder import Message
from gputui.core import units
from gputui.core.config import PRIVATE_FILE_MODE
from gputui.core.units import iso
from gputui.machine.aggregate import totals
from gputui.machine.gpu_model import FastTick, GpuEvent, SlowTick
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

log = logging.getLogger(__name__)

# What the sampler reported, while the disk does not answer.
WAITING_BATCHES = 1200
CLOSING_SECONDS = 5.0  # a disk or pipe that takes longer takes nothing
KEPT_FILES = 10  # with the limit of each, a bound on the disk

Format = Literal["ndjson", "csv"]
Line = dict[str, Any]

_LEADING = ("time", "at", "kind", "gpu", "uuid")
_KINDS = (GpuSample, GpuSlowSample, HostSample, GpuEvent)
CSV_COLUMNS = tuple(dict.fromkeys((*_LEADING, *(name for kind in _KINDS for name in kind.__struct_fields__))))


def lines(message: Message, indices: Mapping[str, int]) -> Iterator[Line]:
    """The lines of a message; ``indices`` maps UUIDs to GPU indices. Lists of processes are left
    out, because they name other users' programs."""
    if isinstance(message, FastTick | SlowTick):
        kind = "gpu" if isinstance(message, FastTick) else "gpu_slow"
        for sample in message.gpus:
            head = {"time": iso(message.at), "at": message.at, "kind": kind, "gpu": indices.get(sample.uuid)}
            yield {**head, **asdict(sample)}
    elif isinstance(message, HostSample):
        yield {"time": iso(message.at), **asdict(message), "kind": "host"}
    elif isinstance(message, GpuEvent):
        head = {"time": iso(message.at), "gpu": indices.get(message.uuid)}
        yield {**head, **asdict(message), "kind": "gpu_event"}


def encode(line: Line, form: Format) -> bytes:
    """A line as bytes, with its newline."""
    if form == "ndjson":
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"
    cells = []
    for column in CSV_COLUMNS:
        cell = line.get(column)
        if isinstance(cell, list | tuple):
            cell = ";".join(cell)
        cells.append(cell)
    return csv_row(cells)


def csv_row(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


class RotatedFile:
    """A file of lines with its predecessors ``NAME.1``, ``NAME.2`` up to KEPT_FILES, for one thread.

    Methods raise OSError if the file cannot be written.
    """

    def __init__(self, path: Path, rotate_bytes: int | None, header: bytes = b"") -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._header = header
        self._file: IO[bytes] | None = None

    def write(self, text: bytes) -> None:
        """Append whole lines."""
        file = self._file or self._open()
        if self._rotate_bytes is not None and file.tell() > len(self._header) and file.tell() >= self._rotate_bytes:
            file = self._rotate()
        file.write(text)
        file.flush()

    def close(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            file.close()

    def _open(self) -> IO[bytes]:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = file = os.fdopen(os.open(self._path, flags, PRIVATE_FILE_MODE), "ab")
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), len(self._header), 0) != self._header:
            return self._rotate()
        if not size:
            file.write(self._header)
        return file

    def _rotate(self) -> IO[bytes]:
        self.close()
        for number in range(KEPT_FILES - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class FileOutput:
    """Accepts messages in one thread and writes them in another."""

    def __init__(self, path: Path, form: Format, rotate_bytes: int | None) -> None:
        self.path = path
        self._form = form
        header = csv_row(list(CSV_COLUMNS)) if form == "csv" else b""
        self._file = RotatedFile(path, rotate_bytes, header)
        self._waiting: queue.Queue[bytes | None] = queue.Queue(WAITING_BATCHES)
        self._is_stuck = False
        self._thread = threading.Thread(target=self._run, name="file-output", daemon=True)

    def start(self) -> None:
        """Open the file and start the thread. Raises OSError if the file cannot be opened."""
        self._file.write(b"")
        self._thread.start()

    def take(self, messages: Iterable[Message], indices: Mapping[str, int]) -> None:
        """Queue messages without blocking; they are dropped while too many wait."""
        text = b"".join(encode(line, self._form) for message in messages for line in lines(message, indices))
        with suppress(queue.Full):
            self._waiting.put_nowait(text)

    def close(self) -> None:
        """Write queued messages, for at most CLOSING_SECONDS."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                self._file.write(text)
            except OSError as error:
                if not self._is_stuck:
                    log.warning("%s cannot be written (%s); samples are dropped until it can", self.path, error)
                self._is_stuck = True
                continue
            if self._is_stuck:
                log.warning("%s is written again; some samples are missing from it", self.path)
                self._is_stuck = False
        with suppress(OSError):
            self._file.close()


Shape = dict[str, Any]
"""The machine's state at one time, as printed with ``--json``."""


def record_shape(
    indices: Mapping[str, int],
    samples: Iterable[GpuSample],
    host: HostSample | None,
    gpu_problem: str | None,
    active_runs: int,
    now: float,
) -> Shape:
    """The machine's current state: its newest samples. Keys contain the unit; an unknown value is None."""
    gpus = totals(samples, indices)
    cpu_percent = used_bytes = total_bytes = None
    if host is not None:
        cpu_percent = host.cpu_percent
        used_bytes = host.memory_used_bytes
        total_bytes = host.memory_total_bytes
    return {
        "time": iso(now),
        "gpus": gpus.gpu_count,
        "gpus_answering": gpus.answering_count,
        "utilization_percent": gpus.utilization_percent,
        "memory_used_bytes": gpus.memory_used_bytes,
        "memory_total_bytes": gpus.memory_total_bytes,
        "power_watts": gpus.power_watts,
        "hottest_gpu": gpus.hottest_index,
        "hottest_celsius": gpus.hottest_celsius,
        "gpu_problem": gpu_problem,
        "cpu_percent": cpu_percent,
        "host_memory_used_bytes": used_bytes,
        "host_memory_total_bytes": total_bytes,
        "active_runs": active_runs,
    }


def record_line(shape: Shape) -> str:
    """``TIME  8/8 GPUs  util 93%  mem 512/640 GiB  power 5210 W  hottest GPU 3 71 °C  cpu 12%  ram …``."""
    host = (
        f"cpu {units.percent(shape['cpu_percent'])}  ram {units.gibibytes(shape['host_memory_used_bytes'])}"
        f"/{units.gibibytes(shape['host_memory_total_bytes'])} GiB"
    )
    runs = f"{units.count_of(shape['active_runs'], 'run')} active"
    if not shape["gpus"]:
        return f"{shape['time']}  no GPUs  {host}  {runs}"
    if shape["hottest_gpu"] is None:
        hottest = "–"
    else:
        hottest = f"GPU {shape['hottest_gpu']} {units.celsius(shape['hottest_celsius'])}"
    return (
        f"{shape['time']}  {shape['gpus_answering']}/{shape['gpus']} GPUs"
        f"  util {units.percent(shape['utilization_percent'])}"
        f"  mem {units.gibibytes(shape['memory_used_bytes'])}/{units.gibibytes(shape['memory_total_bytes'])} GiB"
        f"  power {units.watts(shape['power_watts'])}  hottest {hottest}  {host}  {runs}"
    )
