"""Event files and offline runs as sources: each line once, in the attempt that wrote it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gputui.metrics.batch import SourceState
from gputui.metrics.records import RecordReader
from gputui.metrics.source_reader import Boundary
from gputui.metrics.tensorboard_files import event_frames, event_scalars
from gputui.metrics.wandb_files import wandb_scalars

from .conftest import Bench
from .test_tracker_files import chunked, framed


def event(step: int, /, **values: float) -> bytes:
    """One event as TensorBoard's writer makes it."""
    inner = b""
    for name, value in values.items():
        tag = name.encode()
        one = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
        inner += b"\x0a" + bytes([len(one)]) + one
    body = b"\x09" + struct.pack("<d", 1.6e9 + step) + b"\x10" + bytes([step])
    return framed(body + (b"\x2a" + bytes([len(inner)]) + inner if inner else b""))


def history(step: int, loss: float, /, **values: float) -> bytes:
    """One record of history as W&B's service makes it."""
    items = b""
    for name, value in {"_step": step, "_timestamp": 1.6e9 + step, "loss": loss, **values}.items():
        text = str(value)
        one = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x82\x01" + bytes([len(text)]) + text.encode()
        items += b"\x0a" + bytes([len(one)]) + one
    return b"\x12" + bytes([len(items)]) + items


def events_of(folder: Path, name: str = "events.out.tfevents.1.host.1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, kind="tensorboard", name="logs/version_*")


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_event_files_of_several_attempts(bench: Bench, tmp_path: Path) -> None:
    first, second = events_of(tmp_path / "logs/version_0"), events_of(tmp_path / "logs/version_1")
    bench.begin()
    bench.pump()
    append(first, event(0) + event(1, loss=0.5, lr=0.25) + event(2, loss=0.25)[:-3])
    bench.pump()
    assert bench.data() == [{"loss": 0.5, "lr": 0.25, "step": 1, "time": 1.6e9 + 1}]
    bench.restart()
    append(first, event(2, loss=0.25)[-3:] + event(3, loss=0.125)[:-1])
    bench.pump()
    bench.begin(2)
    append(second, event(2, loss=0.25))
    bench.restart()
    bench.pump()
    append(second, event(3, loss=0.5))
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert bench.rejected() == []
    assert bench.connection.execute("SELECT min(at), max(at) FROM metrics").fetchone() == (1.6e9 + 1, 1.6e9 + 3)


def test_a_file_that_is_damaged_is_said(bench: Bench, tmp_path: Path) -> None:
    path = events_of(tmp_path / "logs/version_0")
    bench.begin()
    append(path, event(1, loss=1.0) + b"\xff" * 40)
    bench.pump()
    assert bench.stored() == [(1, 1)]
    assert len(bench.rejected()) == 1
    append(path, event(2, loss=1.0))
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2)]


def test_an_offline_run_of_wandb(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="wandb", name="wandb")
    bench.begin()
    content = chunked([b"\x08\x01", *(history(step, 0.5) for step in range(500))])
    path = tmp_path / "wandb" / "offline-run-1-x" / "run-x.wandb"
    path.parent.mkdir(parents=True)
    for start in range(0, len(content), 5000):
        append(path, content[start : start + 5000])
        bench.pump()
        bench.restart()
    assert bench.stored() == [(1, step) for step in range(500)]
    assert bench.data()[3] == {"loss": 0.5, "step": 3, "time": 1.6e9 + 3}


def test_nothing_is_read_before_an_attempt(tmp_path: Path) -> None:
    append(events_of(tmp_path / "a"), event(1, loss=1.0))
    reader = RecordReader(1, str(tmp_path / "a"), "tensorboard")
    assert reader.read(SourceState(), []) is None
    batch = reader.read(SourceState(), [Boundary(0, 0, 1)])
    assert batch is not None and len(batch.rows) == 1
    reader.close()


def test_a_record_that_cannot_be_understood_is_set_aside_alone(bench: Bench, tmp_path: Path) -> None:
    """One of millions of fields costs no more than others."""
    file = events_of(tmp_path / "logs/version_0")
    wrong = bytearray(event(2, loss=0.5))
    wrong[-6] ^= 1
    bench.begin()
    bench.pump()
    append(
        file,
        event(1, loss=1.0) + bytes(wrong) + framed(b"\x10\x00" * 20_000) + framed(b"\x2a\x7f") + event(3, loss=0.5),
    )
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 3)] and len(bench.rejected()) == 3


def test_names_that_mean_something_else_in_a_line_are_changed() -> None:
    for name in ["step", "time", "rank", "event", "phase"]:
        (frame,) = event_frames(event(7, **{name: 0.5}), 0)
        assert frame.content is not None
        assert event_scalars(frame.content) == {f"{name}_": 0.5, "step": 7, "time": 1.6e9 + 7}
        assert wandb_scalars(history(7, 0.25, **{name: 8})) == {
            "loss": 0.25,
            f"{name}_": 8,
            "step": 7,
            "time": 1.6e9 + 7,
        }


def test_a_value_named_rank_is_a_value_and_no_process(bench: Bench, tmp_path: Path) -> None:
    """As the rank of LoRA is: what is of another process than the first is in no chart."""
    bench.begin()
    append(events_of(tmp_path / "logs/version_0"), event(1, loss=0.5, rank=8.0) + event(2, loss=0.25, rank=0.5))
    bench.pump()
    assert [(line["loss"], line["rank_"]) for line in bench.data()] == [(0.5, 8.0), (0.25, 0.5)]
    assert bench.connection.execute("SELECT rank FROM metrics").fetchall() == [(None,), (None,)]
