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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from gputui.core.files import open_regular
from gputui.core.training_log import RESERVED_NAMES
from gputui.metrics.contract import LineFormat
from gputui.store.metrics.roles import is_held_out

MAX_RECORD_BYTES = 64 << 20
"""A larger length means that the file is damaged."""

Frames = Iterator[tuple[int, bytes]]
"""The end of each complete record, from the start of the data, and its content."""


class DamagedRecordError(ValueError):
    """Bytes that are no record, or a record that cannot be parsed. The text says which."""


class RecordReader:
    """Makes the records of one file metrics lines. ``learned`` as of LineFormat."""

    learned: Any = None

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        """The scalars of a record as a metrics line, with step and time; None without any. Raises
        DamagedRecordError."""
        raise NotImplementedError


class RecordFormat(LineFormat):
    """A format of records: ``frames`` splits data (which begins so many bytes from the start of the
    file) and raises DamagedRecordError, ``records`` reads what it finds."""

    def __init__(self, frames: Callable[[bytes, int], Frames], records: RecordReader) -> None:
        self.frames = frames
        self.scalars = records.scalars
        self._records = records

    @property
    def learned(self) -> Any:
        return self._records.learned

    @property
    def inherited(self) -> Any:
        return None


def _as_line(values: Mapping[str, Any], step: Any, time: Any) -> dict[str, Any] | None:
    """A record's scalars as a metrics line; None without any."""
    if values:
        return {**_unreserved(values), "step": step, "time": time}
    return None


def _unreserved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of which those with a reserved name, such as ``rank``, got an underscore."""
    unreserved = {}
    for name, value in values.items():
        if name in RESERVED_NAMES:
            name = f"{name}_"
        unreserved[name] = value
    return unreserved


# --- protocol buffers (protobuf.dev, "Encoding") --------------------------------------------------

_VARINT = 0
_FIXED64 = 1
_LENGTH = 2
_FIXED32 = 5


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
    if fitting:
        number: float = struct.unpack(form, fitting[-1])[0]
        return number
    return None


# --- TensorBoard ----------------------------------------------------------------------------------

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4

# DataTypes of scalars (tensorflow/core/framework/types.proto), and how a tensor packs their values.
_INT32 = 3
_INT64 = 9
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


_SESSION = "_hparams_/session_start_info"


class EventRecords(RecordReader):
    """Events of a file in a subfolder of a run's folder, "" for the folder itself.

    The results that `add_hparams` writes into a folder of their own have no step, so that they are
    an event of the run.
    """

    def __init__(self, subfolder: str = "") -> None:
        self._subfolder = subfolder
        self._is_session = False

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        event = _fields(record)
        values: dict[str, Any] = {}
        for summary in _messages(event, 5):
            for content in _messages(_fields(summary), 1):
                value = _fields(content)
                tag = _text(value, 1)
                scalar = _number("<f", value.get(2, ()))
                self._is_session = self._is_session or (tag == _SESSION and self._subfolder != "")
                for tensor in _messages(value, 8):
                    scalar = _tensor_scalar(_fields(tensor))
                if scalar is not None:
                    values[tag] = scalar
        time = _number("<d", event.get(1, ()))
        if self._is_session:
            if values:
                return {**_unreserved(values), "event": "hparams", "time": time}
            return None
        step = next((step for step in event.get(2, ()) if isinstance(step, int)), 0)
        return _as_line({name_in(self._subfolder, tag): value for tag, value in values.items()}, step, time)


# Keras and many scripts have a writer for each of these folders, and none for the one above.
_PART_FOLDERS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"})


def name_in(subfolder: str, tag: str) -> str:
    """The name of a scalar in a subfolder: ``acc/train`` in ``acc_train``, which
    ``add_scalars("acc", {"train": …})`` makes, else ``train/acc`` in ``train``."""
    folder, _, last = subfolder.rpartition("/")
    part = last.removeprefix(f"{tag.replace('/', '_')}_")
    if part not in ("", last):
        return "/".join(filter(None, (folder, tag, part)))
    return "/".join(filter(None, (subfolder, tag)))


def subfolder_of_run(folder: Path, written: Collection[Path] | None = None) -> str:
    """The place of a folder with event files below the folder of their run: the highest one above
    without a gap that has event files too, or the one that holds parts of the run such as
    ``train`` and ``val``. Of ``written`` files, those alone count. Raises OSError."""
    base = folder
    while base != base.parent and _has_event_file(base.parent, written):
        base = base.parent
    if base == folder and folder.name.lower() in _PART_FOLDERS:
        base = folder.parent
    if base == folder:
        return ""
    return folder.relative_to(base).as_posix()


def _has_event_file(folder: Path, written: Collection[Path] | None) -> bool:
    """Return whether a folder has an event file, one of ``written`` if they are known. Raises OSError."""
    files = folder.glob(_EVENT_FILES)
    return any(written is None or file in written for file in files)


def _tensor_scalar(tensor: Mapping[int, list[Any]]) -> float | None:
    """The number of a tensor without dimensions; None for any other tensor."""
    data_type = tensor.get(1, [0])[-1]
    if any(_fields(shape).get(2) for shape in _messages(tensor, 2)) or data_type not in _PACKED:
        return None
    integers = [*tensor.get(7, ()), *tensor.get(10, ())]
    if integers and data_type in (_INT32, _INT64):
        integer = integers[-1]
        if not isinstance(integer, int):
            integer, _ = _varint(integer, 0)
        # A negative number is the varint of its 64 bits in two's complement.
        if integer >= 1 << 63:
            integer -= 1 << 64
        return float(integer)
    packed = [value for field in (4, 5, 6) for value in tensor.get(field, ())]
    number = _number(_PACKED[data_type], packed)
    if number is None:
        return None
    return float(number)


# --- W&B ------------------------------------------------------------------------------------------

_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL = 1
_FIRST = 2
_MIDDLE = 3
_LAST = 4

# Longer than any number in JSON.
_NUMBER_BYTES = 64


def wandb_frames(data: bytes, offset: int) -> Frames:
    """The complete records at the beginning of ``data``, which begins ``offset`` bytes from the
    start of the file. Raises DamagedRecordError."""
    position = 0
    content = b""
    if offset == 0:
        if len(data) < _FILE_HEADER_BYTES:
            return
        if data[:4] != b":W&B":
            raise DamagedRecordError("no file of W&B")
        position = _FILE_HEADER_BYTES
    while True:
        block_left = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
        if block_left < _CHUNK_HEADER.size:
            position = position + block_left
            block_left = _BLOCK_BYTES
        begin = position + _CHUNK_HEADER.size
        if begin > len(data):
            return
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        if not _FULL <= kind <= _LAST or begin + length > position + block_left:
            raise DamagedRecordError("no record of W&B")
        position = begin + length
        if position > len(data):
            return
        if kind in (_FULL, _FIRST):
            content = b""
        content += data[begin:position]
        if kind in (_FULL, _LAST):
            yield position, content


class HistoryRecords(RecordReader):
    """W&B's records of history. Their step is the newest value of the metric that the script has
    declared as the step of its metrics (`define_metric`), else W&B's own count.

    If it declared several, one for training counts: the others have another scale.
    """

    def __init__(self, learned: Any = None) -> None:
        self._step_metrics: dict[str, str] = dict(learned or {})
        self._step: int | None = None

    @property
    def learned(self) -> Any:
        return dict(self._step_metrics) or None

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        fields = _fields(record)
        for metric in map(_fields, _messages(fields, 12)):
            if step_metric := _text(metric, 4):
                self._step_metrics[_text(metric, 1) or _text(metric, 2)] = step_metric
        values: dict[str, Any] = {}
        for history in _messages(fields, 2):
            for content in _messages(_fields(history), 1):
                item = _fields(content)
                text = b"".join(_messages(item, 16))
                if len(text) <= _NUMBER_BYTES:
                    with contextlib.suppress(ValueError, RecursionError):
                        # The key, or the parts of a nested one.
                        names = [name.decode("utf-8", "replace") for name in (*_messages(item, 1), *_messages(item, 2))]
                        values[".".join(names)] = json.loads(text)
        numbers = {name: value for name, value in values.items() if name and type(value) in (int, float)}
        count, time, _ = (numbers.pop(name, None) for name in ("_step", "_timestamp", "_runtime"))
        if count is None:
            return None
        declared = numbers.get(self._step_metric or "")
        if declared is not None and declared >= 0 and float(declared).is_integer():
            self._step = int(declared)
        if self._step is not None:
            count = self._step
        return _as_line(numbers, count, time)

    @property
    def _step_metric(self) -> str | None:
        of_training = (step for name, step in self._step_metrics.items() if not is_held_out(name))
        return next(of_training, next(iter(self._step_metrics.values()), None))


class Tracker(NamedTuple):
    """A tracker: the glob of its files below the profile's folder, and how they are read.
    ``records`` gets the subfolder and what earlier readers have learned."""

    pattern: str
    frames: Callable[[bytes, int], Frames]
    records: Callable[[str, Any], RecordReader]

    def file_format(self, subfolder: str = "", learned: Any = None) -> RecordFormat:
        """The format of one file."""
        return RecordFormat(self.frames, self.records(subfolder, learned))


_EVENT_FILES = "events.out.tfevents.*"
TRACKERS = {
    "tensorboard": Tracker(_EVENT_FILES, event_frames, lambda subfolder, _: EventRecords(subfolder)),
    "wandb": Tracker("offline-run-*/run-*.wandb", wandb_frames, lambda _, learned: HistoryRecords(learned)),
}
"""The trackers by kind of source."""


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
    runs = [TrackedRun("wandb", path.stem.removeprefix("run-"), path) for path in sorted(folder.rglob(_OFFLINE))]
    heads = {path.relative_to(folder).parts[:-1][:1] for path in folder.rglob(TRACKERS["tensorboard"].pattern)}
    names = sorted(name for head in heads for name in head)
    if heads and (() in heads or all(name.lower().startswith(_PARTS) for name in names)):
        return [*runs, TrackedRun("tensorboard", folder.resolve().name, folder)]
    return [*runs, *(TrackedRun("tensorboard", name, folder / name) for name in names)]


def steps_of(kind: str, source: Path) -> dict[int, dict[str, Any]]:
    """The values of each step by name, with ``time`` if known. Values of a subfolder have its name
    as a prefix. A damaged file is read up to the damage. Raises OSError."""
    steps: dict[int, dict[str, Any]] = {}
    paths = [source]
    if kind != "wandb":
        paths = sorted(source.rglob(TRACKERS[kind].pattern))
    for path in paths:
        subfolder = ""
        if kind == "tensorboard" and path.parent != source:
            subfolder = path.parent.relative_to(source).as_posix()
        for values in _scalars_of(path, TRACKERS[kind].file_format(subfolder)):
            step = values.pop("step", None)
            time = values.pop("time")
            if isinstance(step, int):
                line = steps.setdefault(step, {"step": step})
                line.update(values)
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
    if steps:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
