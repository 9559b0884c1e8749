"""The files of other trackers, read without their libraries: TensorBoard's event files and W&B's
offline runs. Only records with scalars matter.

An event file (tensorflow/core/lib/io/record_writer.h) frames each record as its length (8 bytes), a
checksum (4), the content, and a checksum (4). The content is a protocol buffer of type Event
(tensorflow/core/util/event.proto).

A file of W&B has, after a header of 7 bytes, blocks of 32 KiB with chunks of checksum (4), length
(2), kind (1) and data (core/pkg/leveldb in W&B's sources). A record has one or several chunks, and
no chunk crosses the end of a block. It is a protocol buffer of type Record (wandb_internal.proto).

``python -m gputui.metrics.trackers KIND SOURCE OUTPUT`` copies the scalars of a run of another
tracker into one file of JSON lines. It is a process of its own, because the files may be large or
damaged.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from gputui.core.config import open_regular

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""

# Names that are no metrics in a metrics line (`contract.parse_values`).
_RESERVED = frozenset({"step", "time", "rank", "event", "phase"})

# Wire types of protocol buffers.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Frames = Iterator[tuple[int, bytes]]
"""The end of each complete record, from the start of the data, and its content."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


@dataclass(frozen=True)
class RecordFormat:
    """A format of records. ``pattern`` is the glob of its files below the profile's folder;
    ``frames`` splits data, which begins so many bytes from the start of the file, and ``scalars``
    returns a record's scalars as a metrics line, None without any. Both raise DamagedRecordError.
    """

    pattern: str
    frames: Callable[[bytes, int], Frames]
    scalars: Callable[[bytes], dict[str, Any] | None]
    breaks_at_return = False
    has_header = False

    @property
    def learned(self) -> Mapping[str, Sequence[int]]:
        return {}

    def begin(self, header: bytes, attempts_first: bytes = b"") -> None:
        """As LineFormat.begin; records have no header."""


def _as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as a metrics line; None without any. Scalars with a reserved name, such as
    ``rank``, get an underscore."""
    if not values:
        return None
    named = {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
    return {**named, "step": step, "time": time}


# --- protocol buffers (protobuf.dev, "Encoding") --------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, value) of each field of a message. The value is an integer for VARINT,
    else bytes. Raises DamagedRecordError."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _varint(message, position)
            yield number, wire, value
            continue
        if wire == LENGTH:
            length, position = _varint(message, position)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise DamagedRecordError("not a protocol buffer")
        if position + length > len(message):
            raise DamagedRecordError("a protocol buffer that is cut off")
        yield number, wire, message[position : position + length]
        position += length


def _within(message: bytes, *numbers: int) -> Iterator[bytes]:
    """The embedded messages on a path of field numbers."""
    if not numbers:
        yield message
        return
    for found, wire, value in _fields(message):
        if found == numbers[0] and wire == LENGTH:
            yield from _within(value, *numbers[1:])


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The unsigned integer at ``position`` and the position behind it. Raises DamagedRecordError."""
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


# --- TensorBoard ----------------------------------------------------------------------------------

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4

# Numbers of the fields: Event, Summary, Summary.Value, TensorProto, TensorShapeProto.
_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_TENSOR_FLOATS, _TENSOR_DOUBLES, _TENSOR_INTS, _TENSOR_INT64S = 5, 6, 7, 10
_SHAPE_DIMENSION = 2

# Each DataType of numbers (tensorflow/core/framework/types.proto) → how one is packed.
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
_PACKED = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}


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
    values: dict[str, Any] = {}
    step, time = 0, None
    for number, wire, value in _fields(record):
        if number == _EVENT_TIME and wire == FIXED64:
            (time,) = struct.unpack("<d", value)
        elif number == _EVENT_STEP and wire == VARINT:
            step = value
        elif number == _EVENT_SUMMARY and wire == LENGTH:
            for content in _within(value, _SUMMARY_VALUE):
                tag, scalar = _tagged_scalar(content)
                if scalar is not None:
                    values[tag] = scalar
    return _as_line(values, step, time)


def _tagged_scalar(content: bytes) -> tuple[str, float | None]:
    """The tag of a Summary.Value and its number; None for images, texts and other values."""
    tag, scalar = "", None
    for number, wire, value in _fields(content):
        if number == _VALUE_TAG and wire == LENGTH:
            tag = value.decode("utf-8", "replace")
        elif number == _VALUE_SIMPLE and wire == FIXED32:
            (scalar,) = struct.unpack("<f", value)
        elif number == _VALUE_TENSOR and wire == LENGTH:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(content: bytes) -> float | None:
    """The number of a tensor without dimensions; None for any other tensor."""
    dtype, packed, integer = 0, b"", None
    for number, wire, value in _fields(content):
        if number == _TENSOR_DTYPE and wire == VARINT:
            dtype = value
        elif number == _TENSOR_SHAPE and wire == LENGTH:
            if any(True for _ in _within(value, _SHAPE_DIMENSION)):
                return None
        elif number in (_TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES) and wire != VARINT:
            packed = value
        elif number in (_TENSOR_INTS, _TENSOR_INT64S) and wire in (VARINT, LENGTH):
            integer = value if wire == VARINT else _varint(value, 0)[0]
    if integer is not None and dtype in (_INT32, _INT64):
        # A negative number is the varint of its 64 bits in two's complement.
        return float(integer - (1 << 64) if integer >= 1 << 63 else integer)
    form = _PACKED.get(dtype)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


# --- W&B ------------------------------------------------------------------------------------------

_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Numbers of the fields: Record, HistoryRecord, HistoryItem.
_RECORD_HISTORY = 2
_HISTORY_ITEM = 1
_ITEM_KEY, _ITEM_NESTED_KEY, _ITEM_JSON = 1, 2, 16

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
    for content in _within(record, _RECORD_HISTORY, _HISTORY_ITEM):
        names, text = [], b""
        for number, wire, value in _fields(content):
            if number in (_ITEM_KEY, _ITEM_NESTED_KEY) and wire == LENGTH:
                names.append(value.decode("utf-8", "replace"))
            elif number == _ITEM_JSON and wire == LENGTH:
                text = value
        if names and len(text) <= _NUMBER_BYTES:
            try:
                item = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if type(item) in (int, float):
                values[".".join(names)] = item
    step, time, _ = (values.pop(name, None) for name in ("_step", "_timestamp", "_runtime"))
    return None if step is None else _as_line(values, step, time)


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
