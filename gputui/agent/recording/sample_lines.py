"""The sampler's messages as lines of NDJSON or of one CSV table. Pure.

A line describes a GPU, the host, or a driver event at one time. Its ``kind`` is ``gpu``, ``gpu_slow``, ``host`` or
``gpu_event``. An unknown value is null, or an empty cell.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec.structs import asdict

from gputui.machine.gpu_model import FastTick, GpuEvent, GpuSample, GpuSlowSample, Inventory, ProcessTick, SlowTick
from gputui.store.json_shapes import iso
from gputui.store.series import HostSample

Format = Literal["ndjson", "csv"]
Message = Inventory | FastTick | SlowTick | ProcessTick | GpuEvent | HostSample
Line = dict[str, Any]

_LEADING = ("time", "at", "kind", "gpu", "uuid")
_KINDS = (GpuSample, GpuSlowSample, HostSample, GpuEvent)
CSV_COLUMNS = tuple(dict.fromkeys((*_LEADING, *(name for kind in _KINDS for name in kind.__struct_fields__))))


def lines(message: Message, indices: Mapping[str, int]) -> Iterator[Line]:
    """The lines of a message; ``indices`` maps UUIDs to GPU indices. Lists of processes are left out, because they name
    other users' programs."""
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


def encoded(line: Line, form: Format) -> bytes:
    """A line as bytes, with its newline."""
    if form == "ndjson":
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"
    cells = [line.get(column) for column in CSV_COLUMNS]
    return csv_row([";".join(cell) if isinstance(cell, list | tuple) else cell for cell in cells])


def csv_row(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
