"""TensorBoard's and W&B's own files, as their own libraries write them."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.tensorboard_files import event_frames, event_scalars, masked_crc
from gputui.metrics.tracker_files import DamagedRecordError, RecordFrame
from gputui.metrics.wandb_files import wandb_frames, wandb_scalars
from tests.conftest import wait_until

Frames = Callable[[bytes, int], Iterator[RecordFrame]]


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


def chunked(records: list[bytes]) -> bytes:
    """As W&B's datastore writes."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        first, rest = True, record
        while first or rest:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = 1 if first and not rest else 2 if first else 4 if not rest else 3
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
    return bytes(out)


def read_in_pieces(frames: Frames, content: bytes, size: int) -> list[bytes]:
    """What a reader gets that looks again whenever so many bytes more are there."""
    found, offset = [], 0
    for end in [*range(size, len(content), size), len(content)]:
        for frame in list(frames(content[offset:end], offset)):
            found.append(frame.content)
        last = list(frames(content[offset:end], offset))
        offset += last[-1].end if last else 0
    return found


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 500))
def test_records_come_once_however_the_file_grows(records: list[bytes], size: int) -> None:
    assert read_in_pieces(event_frames, b"".join(map(framed, records)), size) == records


def test_records_over_several_blocks() -> None:
    for size in [11, 1000, 32768, 32770, 200_000]:
        records = [
            bytes([number]) * length for number, length in enumerate((0, 10, 32_740, 5, 100_000, 7, 32_768 - 14))
        ]
        assert read_in_pieces(wandb_frames, chunked(records), size) == records


def test_damage_is_said_and_not_read_over() -> None:
    good = framed(b"abc")
    with pytest.raises(DamagedRecordError):
        list(event_frames(good + b"\x01" * 20, 0))
    with pytest.raises(DamagedRecordError):
        list(wandb_frames(b"no such file", 0))
    with pytest.raises(DamagedRecordError):
        list(wandb_frames(chunked([b"abc"])[:7] + b"\xff" * 20, 0))


def chunk(kind: int, content: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + content), len(content), kind) + content


@given(st.binary(max_size=200))
def test_any_bytes_are_scalars_nothing_or_damage(content: bytes) -> None:
    for scalars in (event_scalars, wandb_scalars):
        try:
            answer = scalars(content)
        except DamagedRecordError:
            continue
        assert answer is None or "step" in answer


def test_tensorboards_own_files(tmp_path: Path) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
    from tensorboard.summary.writer import event_file_writer as writer_of

    writer = writer_of.EventFileWriter(str(tmp_path))
    shape = tensor_shape_pb2.TensorShapeProto()
    integers = {
        "int32": tensor_pb2.TensorProto(dtype=3, tensor_shape=shape, int_val=[-3]),
        "int64": tensor_pb2.TensorProto(dtype=9, tensor_shape=shape, int64_val=[5]),
        "content": tensor_pb2.TensorProto(dtype=9, tensor_shape=shape, tensor_content=struct.pack("<q", -7)),
    }
    tensor = tensor_pb2.TensorProto(dtype=1, tensor_shape=shape, float_val=[0.5])
    vector = tensor_pb2.TensorProto(
        dtype=1,
        float_val=[0.5],
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]),
    )
    for step in range(3):
        values = [
            summary_pb2.Summary.Value(tag="train/loss", simple_value=1.0 / (step + 1)),
            summary_pb2.Summary.Value(tag="lr", tensor=tensor),
            *(summary_pb2.Summary.Value(tag=name, tensor=integer) for name, integer in integers.items()),
            summary_pb2.Summary.Value(tag="picture", image=summary_pb2.Summary.Image(height=1, width=1)),
            summary_pb2.Summary.Value(tag="vector", tensor=vector),
        ]
        event = event_pb2.Event(wall_time=1000.5 + step, step=step, summary=summary_pb2.Summary(value=values))
        writer.add_event(event)
    writer.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    found = [event_scalars(frame.content) for frame in event_frames(file.read_bytes(), 0)]
    lines = [line for line in found if line is not None]
    assert lines == [
        {
            "train/loss": pytest.approx(1.0 / (step + 1)), "lr": 0.5, "int32": -3.0, "int64": 5.0, "content": -7.0,
            "step": step, "time": 1000.5 + step,
        }
        for step in range(3)
    ]  # fmt: skip


@pytest.mark.long
def test_wandbs_own_files(tmp_path: Path) -> None:
    wandb: Any = pytest.importorskip("wandb")
    os.environ["WANDB_SILENT"] = "true"
    run = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(x_disable_stats=True))
    for step in range(3):
        run.log({"train/loss": 1.0 / (step + 1), "text": "x", "nested": {"lr": 0.5}})
    run.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")

    def written() -> list[dict[str, Any]]:
        found = (wandb_scalars(frame.content) for frame in wandb_frames(file.read_bytes(), 0))
        return [line for line in found if line is not None]

    # Its service writes behind the script's back.
    lines = wait_until(lambda: made if len(made := written()) == 3 else None, 60, "the lines")
    assert [(line["step"], line["train/loss"], line["nested.lr"]) for line in lines] == [
        (step, pytest.approx(1.0 / (step + 1)), 0.5) for step in range(3)
    ]
    assert all(line["time"] > 1e9 for line in lines)
