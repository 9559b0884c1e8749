"""TensorBoard's and W&B's own files: each record once, in the attempt that wrote it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.record_format import DamagedRecordError
from gputui.metrics.tensorboard import EventRecords, name_in, subfolder_of_run
from gputui.metrics.wandb import HistoryRecords
from gputui.store.attempts import read_attempts
from gputui.store.metrics.step_lines import StepLines
from tests.conftest import wait_until
from tests.homes import add_attempt
from tests.metrics.tracker_files import append, chunked, event, events_of, framed, history
from tests.tables import table

from .conftest import RUN, MetricsHome

Frames = Callable[[bytes, int], Iterator[tuple[int, bytes]]]


def read_in_pieces(frames: Frames, content: bytes, size: int) -> list[bytes]:
    """The records of a reader that looks again whenever so many bytes more are there."""
    payloads: list[bytes] = []
    offset = 0
    for end in [*range(size, len(content), size), len(content)]:
        records = list(frames(content[offset:end], offset))
        payloads += [record for _, record in records]
        offset += records[-1][0] if records else 0
    return payloads


def defined(metric: str, step_metric: str) -> bytes:
    """One record of `define_metric`: of a name, or of a pattern with ``*``."""
    number = b"\x12" if "*" in metric else b"\x0a"
    body = number + bytes([len(metric)]) + metric.encode() + b"\x22" + bytes([len(step_metric)]) + step_metric.encode()
    return b"\x62" + bytes([len(body)]) + body


@pytest.fixture
def home(tmp_path: Path) -> MetricsHome:
    return MetricsHome(tmp_path, kind="tensorboard", name="logs/version_*")


# --- records ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 500))
def test_records_come_once_however_the_file_grows(records: list[bytes], size: int) -> None:
    assert read_in_pieces(EventRecords().frames, b"".join(map(framed, records)), size) == records


def test_records_over_several_blocks() -> None:
    lengths = (0, 10, 32_740, 5, 100_000, 7, 32_768 - 14)
    records = [bytes([number]) * length for number, length in enumerate(lengths)]
    for size in [11, 1000, 32768, 32770, 200_000]:
        assert read_in_pieces(HistoryRecords().frames, chunked(records), size) == records


def test_damage_is_said_and_not_read_over() -> None:
    for frames, content in [
        (EventRecords().frames, framed(b"abc") + b"\x01" * 20),
        (HistoryRecords().frames, b"no such file"),
        (HistoryRecords().frames, chunked([b"abc"])[:7] + b"\xff" * 20),
    ]:
        with pytest.raises(DamagedRecordError):
            list(frames(content, 0))


@given(st.binary(max_size=200))
def test_any_bytes_are_scalars_nothing_or_damage(content: bytes) -> None:
    for scalars in (EventRecords().scalars, HistoryRecords().scalars):
        try:
            answer = scalars(content)
        except DamagedRecordError:
            continue
        assert answer is None or "step" in answer


def test_names_that_mean_something_else_in_a_line_are_changed() -> None:
    for name in ["step", "time", "rank", "event", "phase"]:
        ((_, record),) = EventRecords().frames(event(7, **{name: 0.5}), 0)
        assert EventRecords().scalars(record) == {f"{name}_": 0.5, "step": 7, "time": 1.6e9 + 7}
        scalars = HistoryRecords().scalars(history(7, 0.25, **{name: 8}))
        assert scalars == {"loss": 0.25, f"{name}_": 8, "step": 7, "time": 1.6e9 + 7}


def test_tensorboards_own_files(tmp_path: Path) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
    from tensorboard.summary.writer import event_file_writer as writer_of

    writer = writer_of.EventFileWriter(str(tmp_path))
    shape = tensor_shape_pb2.TensorShapeProto()
    line = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensors = {
        "lr": tensor_pb2.TensorProto(dtype=1, tensor_shape=shape, float_val=[0.5]),
        "content": tensor_pb2.TensorProto(dtype=1, tensor_shape=shape, tensor_content=struct.pack("<f", -7)),
        "double": tensor_pb2.TensorProto(dtype=2, tensor_shape=shape, double_val=[0.25]),
        "count": tensor_pb2.TensorProto(dtype=9, tensor_shape=shape, int64_val=[-3]),
        "vector": tensor_pb2.TensorProto(dtype=1, tensor_shape=line, float_val=[0.5]),
    }
    for step in range(3):
        values = [
            summary_pb2.Summary.Value(tag="train/loss", simple_value=1.0 / (step + 1)),
            *(summary_pb2.Summary.Value(tag=name, tensor=tensor) for name, tensor in tensors.items()),
            summary_pb2.Summary.Value(tag="picture", image=summary_pb2.Summary.Image(height=1, width=1)),
        ]
        event = event_pb2.Event(wall_time=1000.5 + step, step=step, summary=summary_pb2.Summary(value=values))
        writer.add_event(event)
    writer.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    records = [EventRecords().scalars(record) for _, record in EventRecords().frames(file.read_bytes(), 0)]
    numbers = {"lr": 0.5, "content": -7.0, "double": 0.25, "count": -3.0}
    assert [line for line in records if line is not None] == [
        {"train/loss": pytest.approx(1.0 / (step + 1)), **numbers, "step": step, "time": 1000.5 + step}
        for step in range(3)
    ]


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
        records = (HistoryRecords().scalars(record) for _, record in HistoryRecords().frames(file.read_bytes(), 0))
        return [line for line in records if line is not None]

    # Its service writes behind the script's back.
    lines = wait_until(lambda: records if len(records := written()) == 3 else None, 60, "the lines")
    assert [(line["step"], line["train/loss"], line["nested.lr"]) for line in lines] == [
        (step, pytest.approx(1.0 / (step + 1)), 0.5) for step in range(3)
    ]
    assert all(line["time"] > 1e9 for line in lines)


@table(
    ("subfolder", "tag", "name"),
    [
        ("", "loss", "loss"),
        ("train", "loss", "train/loss"),
        ("a/train", "loss", "a/train/loss"),
        ("acc_train", "acc", "acc/train"),
        ("val_acc_top_1", "val/acc", "val/acc/top_1"),
        ("a/acc_train", "acc", "a/acc/train"),
        ("acc_", "acc", "acc_/acc"),
    ],
)
def test_names_in_subfolders(subfolder: str, tag: str, name: str) -> None:
    assert name_in(subfolder, tag) == name


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    for folder in ("one", "one/acc_train", "one/deep/er", "two/train", "two/validation", "three/test_exp"):
        events_of(tmp_path / folder).touch()
    subfolders = {
        folder: subfolder_of_run(tmp_path / folder)
        for folder in ("one", "one/acc_train", "two/train", "two/validation", "three/test_exp")
    }
    assert subfolders == {
        "one": "",
        "one/acc_train": "acc_train",
        "two/train": "train",
        "two/validation": "validation",
        "three/test_exp": "",
    }


def test_results_of_parameters_have_no_step() -> None:
    tag = b"_hparams_/session_start_info"
    value = b"\x0a" + bytes([len(tag) + 2]) + b"\x0a" + bytes([len(tag)]) + tag
    begin = b"\x2a" + bytes([len(value)]) + value
    ((_, result),) = EventRecords().frames(event(0, **{"hparam/acc": 0.75, "rank": 1.0}), 0)
    for subfolder, is_session in (("1795907019.02", True), ("", False)):
        records = EventRecords(subfolder)
        assert records.scalars(begin) is None
        line = records.scalars(result)
        assert line is not None
        assert ("step" not in line, line.get("event") == "hparams") == (is_session, is_session)
        assert (line["hparam/acc"], line["rank_"]) == (0.75, 1.0)


@pytest.mark.long
def test_tensorboards_own_folders(tmp_path: Path) -> None:
    """As torch's writer makes them: of `add_scalars`, and of `add_hparams`, whose results have no step."""
    tensorboard: Any = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    for step in range(1, 3):
        writer.add_scalars("acc", {"train": step / 2, "val": step / 4}, step)
        writer.add_scalar("loss", 1 / step, step)
    writer.add_hparams({"lr": 0.5}, {"hparam/acc": 0.75})
    writer.close()
    lines = []
    for file in sorted(tmp_path.rglob("events.out.tfevents.*")):
        records = EventRecords(subfolder_of_run(file.parent))
        scalars = (records.scalars(record) for _, record in EventRecords().frames(file.read_bytes(), 0))
        lines += [line for line in scalars if line is not None and line.pop("time") > 0]
    assert {"event": "hparams", "hparam/acc": 0.75} in lines
    assert [line for line in lines if "acc/train" in line] == [{"acc/train": step / 2, "step": step} for step in (1, 2)]
    assert [line for line in lines if "acc/val" in line] == [{"acc/val": step / 4, "step": step} for step in (1, 2)]
    assert {"loss": 0.5, "step": 2} in lines
    assert len(lines) == 7


def test_the_declared_step_of_wandb_counts() -> None:
    records = HistoryRecords()

    def step(number: int, **values: float) -> int:
        line = records.scalars(history(number, 0.5, **values))
        assert line is not None
        return int(line["step"])

    assert step(7, n=1) == 7
    assert records.learned is None
    # The validation has another scale: its lines have the newest step of the training.
    for metric, step_metric in (("val/*", "round"), ("*", "n")):
        assert records.scalars(defined(metric, step_metric)) is None
    assert [step(8, n=100), step(9, round=1), step(10, n=200), step(11), step(12, n=0.5)] == [100, 100, 200, 200, 200]
    later = HistoryRecords(records.learned)
    line = later.scalars(history(13, 0.5, n=300))
    assert line is not None
    assert line["step"] == 300


# --- files ------------------------------------------------------------------------------------------------------------


def test_event_files_of_several_attempts(home: MetricsHome, tmp_path: Path) -> None:
    first, second = (events_of(tmp_path / f"logs/version_{number}") for number in (0, 1))
    append(first, event(0, loss=9.0))
    home.begin()
    home.pump()
    append(first, event(0) + event(1, loss=0.5, rank=0.25) + event(2, loss=0.25)[:-3])
    home.pump()
    # A value named rank, as that of LoRA, is no process: what is of another one than the first is in no chart.
    assert home.data() == [{"loss": 0.5, "rank_": 0.25, "step": 1, "time": 1.6e9 + 1}]
    home.restart()
    append(first, event(2, loss=0.25)[-3:] + event(3, loss=0.125)[:-1])
    home.pump()
    home.begin(2)
    append(second, event(2, loss=0.25))
    home.restart()
    home.pump()
    append(second, event(3, loss=0.5))
    home.pump()
    assert home.stored() == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert home.rejected() == []
    bounds = home.connection.execute("SELECT min(at), max(at), max(rank) FROM metrics").fetchone()
    assert bounds == (1.6e9 + 1, 1.6e9 + 3, None)


def test_a_record_that_cannot_be_understood_is_set_aside_alone(home: MetricsHome, tmp_path: Path) -> None:
    """A large one is read; behind damage, what comes later is."""
    file = events_of(tmp_path / "logs/version_0")
    picture = framed(b"\x2a\x80\x80\x40" + b"\x0a\xfc\xff\x3f" + b"\x22\xf8\xff\x3f" + bytes((1 << 20) - 8))
    home.begin()
    home.pump()
    append(
        file,
        event(1, loss=1.0) + framed(b"\x2a\x7f") + picture + event(3, loss=0.5) + b"\xff" * 40,
    )
    home.pump()
    assert home.stored() == [(1, 1), (1, 3)]
    assert len(home.rejected()) == 2
    append(file, event(4, loss=1.0))
    home.pump()
    assert home.stored()[2:] == [(1, 4)]


def test_an_offline_run_of_wandb(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, kind="wandb", name="wandb")
    home.begin()
    content = chunked([b"\x08\x01", *(history(step, 0.5) for step in range(500))])
    path = tmp_path / "wandb/offline-run-1-x/run-x.wandb"
    for start in range(0, len(content), 5000):
        append(path, content[start : start + 5000])
        home.pump()
        home.restart()
    assert home.stored() == [(1, step) for step in range(500)]
    assert home.data()[3] == {"loss": 0.5, "step": 3, "time": 1.6e9 + 3}


def test_an_attempt_counts_by_the_loss_of_its_board(home: MetricsHome, tmp_path: Path) -> None:
    """The accuracy and the learning rate have steps of their own."""
    add_attempt(home.connection, RUN)
    home.begin()
    board = events_of(tmp_path / "logs/version_0")
    append(board, event(1, **{"loss/train": 0.5}) + event(2, **{"loss/train": 0.5}) + event(90, lr=0.5))
    home.pump()
    append(board, event(3, **{"loss/train": 0.5}) + event(0, **{"accuracy/valid": 0.5}) + event(91, lr=0.5))
    home.pump()
    (attempt,) = read_attempts(home.connection, RUN)
    assert (attempt.first_step, attempt.last_step) == (1, 3)
    line = StepLines(home.connection, RUN).newest(1)
    assert line is not None
    assert line.step == 3
