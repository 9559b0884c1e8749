"""TensorBoard's event files, read without its library and without checking its checksums.

An event file (tensorflow/core/lib/io/record_writer.h) frames each record as its length (8 bytes), a
checksum (4), the content, and a checksum (4); the content is an Event
(tensorflow/core/util/event.proto). Only records with scalars matter.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gputui.metrics.protobuf import ProtoMessage, packed_number, varint
from gputui.metrics.record_format import (
    MAX_RECORD_BYTES,
    DamagedRecordError,
    Frames,
    RecordFormat,
    unreserved,
)

EVENT_FILES = "events.out.tfevents.*"

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4

# The fields of an Event, of its Summary, and of the Summary's values (tensorflow/core/framework/summary.proto).
_EVENT_WALL_TIME = 1
_EVENT_STEP = 2
_EVENT_SUMMARY = 5
_SUMMARY_VALUE = 1
_VALUE_TAG = 1
_VALUE_SIMPLE_VALUE = 2
_VALUE_TENSOR = 8
# The fields of a TensorProto and its shape (tensorflow/core/framework/tensor.proto).
_TENSOR_DTYPE = 1
_TENSOR_SHAPE = 2
_TENSOR_CONTENT = 4
_TENSOR_FLOAT_VAL = 5
_TENSOR_DOUBLE_VAL = 6
_TENSOR_INT_VAL = 7
_TENSOR_INT64_VAL = 10
_SHAPE_DIM = 2

# DataTypes of scalars (tensorflow/core/framework/types.proto), and how a tensor packs their values.
_FLOAT = 1
_DOUBLE = 2
_INT32 = 3
_INT64 = 9
_PACKED = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}

# The tag with which `add_hparams` begins a folder of its own.
_SESSION = "_hparams_/session_start_info"
# Keras and many scripts have a writer for each of these folders, and none for the one above.
_PART_FOLDERS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"})


class EventRecords(RecordFormat):
    """Events of a file in a subfolder of a run's folder, "" for the folder itself.

    The results that `add_hparams` writes into a folder of their own have no step, so that they are
    an event of the run.
    """

    def __init__(self, subfolder: str = "") -> None:
        self._subfolder = subfolder
        self._is_session = False

    def frames(self, data: bytes, offset: int) -> Frames:
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

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        event = ProtoMessage(record)
        values: dict[str, Any] = {}
        for summary in event.messages(_EVENT_SUMMARY):
            for value in summary.messages(_SUMMARY_VALUE):
                tag = value.text(_VALUE_TAG)
                scalar = packed_number("<f", value.values(_VALUE_SIMPLE_VALUE))
                self._is_session = self._is_session or (tag == _SESSION and self._subfolder != "")
                for tensor in value.messages(_VALUE_TENSOR):
                    scalar = _tensor_scalar(tensor)
                if scalar is not None:
                    values[tag] = scalar
        if not values:
            return None
        time = packed_number("<d", event.values(_EVENT_WALL_TIME))
        if self._is_session:
            return {**unreserved(values), "event": "hparams", "time": time}
        step = next((step for step in event.values(_EVENT_STEP) if isinstance(step, int)), 0)
        metrics = {name_in(self._subfolder, tag): value for tag, value in values.items()}
        return {**unreserved(metrics), "step": step, "time": time}


def _tensor_scalar(tensor: ProtoMessage) -> float | None:
    """The number of a tensor without dimensions; None for any other tensor."""
    data_type = (tensor.values(_TENSOR_DTYPE) or [0])[-1]
    has_dimensions = any(shape.values(_SHAPE_DIM) for shape in tensor.messages(_TENSOR_SHAPE))
    if has_dimensions or not isinstance(data_type, int) or data_type not in _PACKED:
        return None
    integers = [*tensor.values(_TENSOR_INT_VAL), *tensor.values(_TENSOR_INT64_VAL)]
    if integers and data_type in (_INT32, _INT64):
        integer = integers[-1]
        if not isinstance(integer, int):
            integer, _ = varint(integer, 0)
        # A negative number is the varint of its 64 bits in two's complement.
        if integer >= 1 << 63:
            integer -= 1 << 64
        return float(integer)
    fields = (_TENSOR_CONTENT, _TENSOR_FLOAT_VAL, _TENSOR_DOUBLE_VAL)
    number = packed_number(_PACKED[data_type], [value for field in fields for value in tensor.values(field)])
    if number is None:
        return None
    return float(number)


def name_in(subfolder: str, tag: str) -> str:
    """The name of a scalar in a subfolder of its run's folder.

    >>> name_in("train", "acc")
    'train/acc'

    ``add_scalars("acc", {"train": …})`` makes a folder for each of its scalars:

    >>> name_in("acc_train", "acc")
    'acc/train'
    """
    folder, _, last = subfolder.rpartition("/")
    part = last.removeprefix(f"{tag.replace('/', '_')}_")
    if part not in ("", last):
        return "/".join(filter(None, (folder, tag, part)))
    return "/".join(filter(None, (subfolder, tag)))


def subfolder_of_run(folder: Path, written: Collection[Path] | None = None) -> str:
    """The path of a folder with event files below the folder of their run: the highest one above without a gap that
    has event files too, or the one that holds parts of the run such as ``train`` and ``val``.

    Args:
        written: The event files that count; None for all that exist.

    Raises:
        OSError: A folder cannot be read.
    """
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
    files = folder.glob(EVENT_FILES)
    return any(written is None or file in written for file in files)
