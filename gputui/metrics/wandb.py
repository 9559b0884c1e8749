"""The files of W&B's offline runs, read without its library and without checking its checksums.

A file has, after 7 bytes, blocks of 32 KiB with chunks of checksum (4), length (2), kind (1) and data
(core/pkg/leveldb in its sources), of which one or several make up a Record (wandb_internal.proto). Only records of
history matter.
"""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

from gputui.metrics.protobuf import ProtoMessage
from gputui.metrics.record_format import DamagedRecordError, Frames, RecordFormat, unreserved
from gputui.store.metrics.roles import is_held_out

_FILE_HEADER_BYTES = 7
_MAGIC = b":W&B"
_BLOCK_BYTES = 32 << 10
_CHUNK_HEADER = struct.Struct("<IHB")
# The kinds of chunks: a whole record, or the parts of one.
_FULL = 1
_FIRST = 2
_MIDDLE = 3
_LAST = 4

# The fields of a Record, its HistoryRecord with HistoryItems, and its MetricRecord.
_RECORD_HISTORY = 2
_RECORD_METRIC = 12
_HISTORY_ITEM = 1
_ITEM_KEY = 1
_ITEM_NESTED_KEY = 2
_ITEM_VALUE_JSON = 16
_METRIC_NAME = 1
_METRIC_GLOB_NAME = 2
_METRIC_STEP_METRIC = 4

# Longer than any number in JSON.
_NUMBER_BYTES = 64


class HistoryRecords(RecordFormat):
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

    def frames(self, data: bytes, offset: int) -> Frames:
        position = 0
        content = b""
        if offset == 0:
            if len(data) < _FILE_HEADER_BYTES:
                return
            # A mapped file has no startswith.
            if data[: len(_MAGIC)] != _MAGIC:
                raise DamagedRecordError("no file of W&B")
            position = _FILE_HEADER_BYTES
        while True:
            rest_of_block = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
            if rest_of_block < _CHUNK_HEADER.size:
                position += rest_of_block
                rest_of_block = _BLOCK_BYTES
            begin = position + _CHUNK_HEADER.size
            if begin > len(data):
                return
            _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
            if not _FULL <= kind <= _LAST or begin + length > position + rest_of_block:
                raise DamagedRecordError("no record of W&B")
            position = begin + length
            if position > len(data):
                return
            if kind in (_FULL, _FIRST):
                content = b""
            content += data[begin:position]
            if kind in (_FULL, _LAST):
                yield position, content

    def scalars(self, record: bytes) -> dict[str, Any] | None:
        message = ProtoMessage(record)
        for metric in message.messages(_RECORD_METRIC):
            if step_metric := metric.text(_METRIC_STEP_METRIC):
                name = metric.text(_METRIC_NAME) or metric.text(_METRIC_GLOB_NAME)
                self._step_metrics[name] = step_metric
        numbers: dict[str, int | float] = {}
        for history in message.messages(_RECORD_HISTORY):
            numbers |= _numbers(history)
        count = numbers.pop("_step", None)
        time = numbers.pop("_timestamp", None)
        numbers.pop("_runtime", None)
        if count is None:
            return None
        declared = numbers.get(self._step_metric or "")
        if declared is not None and declared >= 0 and float(declared).is_integer():
            self._step = int(declared)
        if self._step is not None:
            count = self._step
        if not numbers:
            return None
        return {**unreserved(numbers), "step": count, "time": time}

    @property
    def _step_metric(self) -> str | None:
        of_training = (step for name, step in self._step_metrics.items() if not is_held_out(name))
        return next(of_training, next(iter(self._step_metrics.values()), None))


def _numbers(history: ProtoMessage) -> dict[str, int | float]:
    """The items of a record of history that are numbers, by their key; a nested key is joined by dots."""
    values: dict[str, Any] = {}
    for item in history.messages(_HISTORY_ITEM):
        text = b"".join(item.contents(_ITEM_VALUE_JSON))
        if len(text) > _NUMBER_BYTES:
            continue
        key = [*item.contents(_ITEM_KEY), *item.contents(_ITEM_NESTED_KEY)]
        with contextlib.suppress(ValueError, RecursionError):
            values[".".join(part.decode("utf-8", "replace") for part in key)] = json.loads(text)
    return {name: value for name, value in values.items() if name and type(value) in (int, float)}
