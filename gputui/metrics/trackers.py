"""The files of other trackers, read without their libraries and checksums: TensorBoard's event
files and W&B's offline runs. Only records with scalars matter.

An event file (tensorflow/core/lib/io/record_writer.h) frames each record as its length (8 bytes), a
checksum (4), the content, and a checksum (4); the content is an Event
(tensorflow/core/util/event.proto). A file of W&B has, after 7 bytes, blocks of 32 KiB with chunks
of checksum (4), length (2), kind (1) and data (core/pkg/leveldb in its sources), of which one or
several make up a Record (wandb_internal.proto).

``python -m gputui.metrics.trackers KIND SOURCE OUTPUT`` copies the scalars of another tracker's run
into a file of JSON lines, as a process of its own: the files may be large or damaged.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from gputui.core.files import open_regular
from gputui.metrics.contract import LineFormat

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""

# Names that are no metrics in a metrics line (`contract.parse_values`).
_RESERVED = frozenset({"step", "time", "rank", "event", "phase"})

Frames = Iterator[tuple[int, bytes]]
"""The end of each complete record, from the start of the data, and its content."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


@dataclass(frozen=True)
class RecordFormat(LineFormat):
    """A format of records: the glob of its files below the profile's folder, ``frames`` to split
    data (which begins so many bytes from the start of the file), and ``scalars`` to make a record a
    metrics line, None without any. Both raise DamagedRecordError."""

    pattern: str
    frames: Callable[[bytes, int], Frames]
    scalars: Callable[[bytes], dict[str, Any] | None]


def _as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as a metrics line; None without any. Scalars with a reserved name, such as
    ``rank``, get an underscore."""
    if not values:
        return None
    named = {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
    return {**named, "step": step, "time": time}


# --- protocol buffers (protobuf.dev, "Encoding") --------------------------------------------------

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of each field of a message: integers, or bytes of what has a length. Raises
    DamagedRecordError."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        wire = key & 7
        value: int | bytes
        if wire == _VARINT:
            value, position = _varint(message, position)
        else:
            if wire == _LENGTH:
                length, position = _varint(message, position)
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise DamagedRecordError("not a protocol buffer")
            value = message[position : position + length]
            position += length
            if position > len(message):
                raise DamagedRecordError("a protocol buffer that is cut off")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at ``position`` and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise DamagedRecordError("a protocol buffer that is cut off")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedRecordError("not a protocol buffer")


def _messages(fields: Mapping[int, list[Any]], number: int) -> list[bytes]:
    """The values with a length of one field."""
    return [value for value in fields.get(number, ()) if isinstance(value, bytes)]


def _text(fields: Mapping[int, list[Any]], number: int) -> str:
    return b"".join(_messages(fields, number)).decode("utf-8", "replace")


def _number(form: str, values: Sequence[Any]) -> float | None:
    """The last of some values that is a packed number of this form."""
    fitting = [value for value in values if isinstance(value, bytes) and len(value) == struct.calcsize(form)]
    return struct.unpack(form, fitting[-1])[0] if fitting else None


# --- TensorBoard ----------------------------------------------------------------------------------

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4

# DataTypes of scalars (tensorflow/core/framework/types.proto), and how a tensor packs their values.
_INT32, _INT64 = 3, 9
_PACKED = {1: "<f", 2: "<d", _INT32: "<i", _INT64: "<q"}


def event_frames(data: bytes, _offset: int) -> Frames:
    """The complete records at the beginning of ``data``. Raises DamagedRecordError."""
    position = 0
    while len(data) - position >= _HEADER.size:
        begin = position + _HEADER.size
        length, _ = _HEADER.unpack(data[position:begin])
        if length > MAX_RECORD_BYTES:
            raise DamagedRecordError("no record of an event file")
        position = begin + length + _FOOTER_BYTES
        if position > len(data):
            return
        yield position, data[begin : begin + length]


def event_scalars(record: bytes) -> dict[str, Any] | None:
    """The scalars of an event as a metrics line, with step and time; None without any. Raises
    DamagedRecordError."""
    event = _fields(record)
    values: dict[str, Any] = {}
    for summary in _messages(event, 5):
        for content in _messages(_fields(summary), 1):
            value = _fields(content)
            scalar = _number("<f", value.get(2, ()))
            for tensor in _messages(value, 8):
                scalar = _tensor_scalar(_fields(tensor))
            if scalar is not None:
                values[_text(value, 1)] = scalar
    step = next((step for step in event.get(2, ()) if isinstance(step, int)), 0)
    return _as_line(values, step, _number("<d", event.get(1, ())))


def _tensor_scalar(tensor: Mapping[int, list[Any]]) -> float | None:
    """The number of a tensor without dimensions; None for any other tensor."""
    data_type = tensor.get(1, [0])[-1]
    if any(_fields(shape).get(2) for shape in _messages(tensor, 2)) or data_type not in _PACKED:
        return None
    integers = [*tensor.get(7, ()), *tensor.get(10, ())]
    if integers and data_type in (_INT32, _INT64):
        integer = integers[-1] if isinstance(integers[-1], int) else _varint(integers[-1], 0)[0]
        # A negative number is the varint of its 64 bits in two's complement.
        return float(integer - (1 << 64) if integer >= 1 << 63 else integer)
    packed = [value for field in (4, 5, 6) for value in tensor.get(field, ())]
    number = _number(_PACKED[data_type], packed)
    return None if number is None else float(number)


# --- W&B ------------------------------------------------------------------------------------------

_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Longer than any number in JSON.
_NUMBER_BYTES = 64


def wandb_frames(data: bytes, offset: int) -> Frames:
    """The complete records at the beginning of ``data``, which begins ``offset`` bytes from the
    start of the file. Raises DamagedRecordError."""
    position, content = 0, b""
    if offset == 0:
        if len(data) < _FILE_HEADER_BYTES:
            return
        if data[:4] != b":W&B":
            raise DamagedRecordError("no file of W&B")
        position = _FILE_HEADER_BYTES
    while True:
        left = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
        if left < _CHUNK_HEADER.size:
            position, left = position + left, _BLOCK_BYTES
        begin = position + _CHUNK_HEADER.size
        if begin > len(data):
            return
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        if not _FULL <= kind <= _LAST or begin + length > position + left:
            raise DamagedRecordError("no record of W&B")
        position = begin + length
        if position > len(data):
            return
        content = (b"" if kind in (_FULL, _FIRST) else content) + data[begin:position]
        if kind in (_FULL, _LAST):
            yield position, content


def wandb_scalars(record: bytes) -> dict[str, Any] | None:
    """The numbers of a record of history as a metrics line, with step and time; None for other
    records. Raises DamagedRecordError."""
    values: dict[str, Any] = {}
    for history in _messages(_fields(record), 2):
        for content in _messages(_fields(history), 1):
            item = _fields(content)
            text = b"".join(_messages(item, 16))
            if len(text) <= _NUMBER_BYTES:
                with contextlib.suppress(ValueError, RecursionError):
                    # The key, or the parts of a nested one.
                    names = [name.decode("utf-8", "replace") for name in (*_messages(item, 1), *_messages(item, 2))]
                    values[".".join(names)] = json.loads(text)
    numbers = {name: value for name, value in values.items() if name and type(value) in (int, float)}
    step, time, _ = (numbers.pop(name, None) for name in ("_step", "_timestamp", "_runtime"))
    return None if step is None else _as_line(numbers, step, time)


TRACKERS = {
    "tensorboard": RecordFormat("events.out.tfevents.*", event_frames, event_scalars),
    "wandb": RecordFormat("offline-run-*/run-*.wandb", wandb_frames, wandb_scalars),
}
"""The formats by kind of source."""


# --- import ---------------------------------------------------------------------------------------

_OFFLINE = "run-*.wandb"
_PARTS = ("train", "val", "eval", "test")


class TrackedRun(NamedTuple):
    """A run of another tracker: a folder of event files and subfolders, or one file of W&B."""

    kind: str
    name: str
    source: Path


def tracked_runs(folder: Path) -> list[TrackedRun]:
    """The runs in a folder. Each subfolder with event files is a run, unless all are parts of one
    run, such as training and validation. Raises OSError."""
    found = [TrackedRun("wandb", path.stem.removeprefix("run-"), path) for path in sorted(folder.rglob(_OFFLINE))]
    heads = {path.relative_to(folder).parts[:-1][:1] for path in folder.rglob(TRACKERS["tensorboard"].pattern)}
    names = sorted(name for head in heads for name in head)
    if heads and (() in heads or all(name.lower().startswith(_PARTS) for name in names)):
        return [*found, TrackedRun("tensorboard", folder.resolve().name, folder)]
    return [*found, *(TrackedRun("tensorboard", name, folder / name) for name in names)]


def steps_of(kind: str, source: Path) -> dict[int, dict[str, Any]]:
    """The values of each step by name, with ``time`` if known. Values of a subfolder have its name
    as a prefix. A damaged file is read up to the damage. Raises OSError."""
    steps: dict[int, dict[str, Any]] = {}
    for path in [source] if kind == "wandb" else sorted(source.rglob(TRACKERS[kind].pattern)):
        relative = path.parent.relative_to(source) if kind == "tensorboard" else Path()
        prefix = "" if relative == Path() else f"{relative.as_posix()}/"
        for values in _scalars_of(path, TRACKERS[kind]):
            step, time = values.pop("step"), values.pop("time")
            if isinstance(step, int):
                line = steps.setdefault(step, {"step": step})
                line.update({prefix + name: value for name, value in values.items()})
                if time is not None:
                    line.setdefault("time", time)
    return steps


def _scalars_of(path: Path, record_format: RecordFormat) -> Iterator[dict[str, Any]]:
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                for _, record in record_format.frames(cast("bytes", content), 0):
                    values = record_format.scalars(record)
                    if values is not None:
                        yield values
            except DamagedRecordError as error:
                sys.stderr.write(f"{path}: {error}; what comes behind is left out\n")


def main(kind: str, source: str, output: str) -> int:
    """Write the lines and print their number; returns 1 if there are none."""
    steps = steps_of(kind, Path(source))
    with Path(output).open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(steps[step]) + "\n" for step in sorted(steps))
    names = {name for line in steps.values() for name in line} - {"step", "time"}
    sys.stdout.write(f"{len(steps)} steps, {len(names)} metrics\n")
    return 0 if steps else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
