"""Trackers: fed in order beside the training, left out once they fail, and what they were told can be read back."""

from __future__ import annotations

import json
import math
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tables import table
from tests.texts import mentions
from trainer.config import Settings
from trainer.errors import TrainerError
from trainer.telemetry.histograms import count
from trainer.telemetry.trackers import MLflow, TensorBoard, Tracker, WeightsAndBiases, close_all, start_trackers


class Recorder(Tracker):
    """A tracker that writes down its calls. `break_at` names the one that raises; `gate` holds up `open`."""

    name = "recorder"

    def __init__(self, break_at: str = "", gate: threading.Event | None = None, **limits: Any) -> None:
        self.calls: list[Any] = []
        self.break_at = break_at
        self.gate = gate
        super().__init__(Settings(), **limits)

    def note(self, name: str, *details: object) -> None:
        if name == self.break_at:
            raise ConnectionError("the server\nis gone")
        self.calls.append((name, *details))

    def open(self) -> None:
        if self.gate:
            self.gate.wait(120)
        self.note("open", threading.current_thread() is self.thread)

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        self.note("scalars", step, values)

    def flush(self) -> None:
        if self.break_at == "flush":
            self.note("flush")

    def close(self, good: bool) -> None:
        self.note("close", good)

    def send_step(self, step: int) -> None:
        self.send(lambda: self.scalars(step, 0.0, {"loss": 1.0}))


def test_calls_are_made_in_order_on_a_thread_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Recorder()
    for step in (1, 2):
        tracker.send_step(step)
    close_all([tracker], good=False)
    tracker.send_step(3)
    steps = [("scalars", step, {"loss": 1.0}) for step in (1, 2)]
    assert tracker.calls == [("open", True), *steps, ("close", False)]
    assert capsys.readouterr().err == ""


@table("call", ["open", "scalars", "flush", "close"])
def test_a_tracker_that_fails_is_named_once_and_left_out(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Recorder(call, flush_seconds=0.001)
    for step in (1, 2):
        tracker.send_step(step)
    close_all([tracker])
    assert tracker.failed and (call in ("open", "close") or tracker.calls[-1] == ("close", False))
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and mentions(shown, "trainer: recorder", "ConnectionError: the server is gone")
    tracker.send_step(3)
    close_all([tracker])
    assert capsys.readouterr().err == ""


@table(("steps", "taken", "said"), [(1, [0], "last values within 0.01 s"), (5, [0, 1], "slowly")])
def test_a_tracker_that_hangs_holds_up_nothing(
    steps: int, taken: list[int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = threading.Event()
    tracker = Recorder(gate=gate, length=2)
    for step in range(steps):
        tracker.send_step(step)
    close_all([tracker], patience=0.01)
    gate.set()
    tracker.thread.join(120)
    assert [call[1] for call in tracker.calls if call[0] == "scalars"] == taken
    [line] = capsys.readouterr().err.splitlines()
    assert mentions(line, "recorder", said)


@table(
    ("wanted", "package"),
    [
        ({"tensorboard": True}, "tensorboard"),
        ({"mlflow": "sqlite:///x.db"}, "mlflow"),
        ({"mlflow": "sqlite:///x.db"}, "sqlalchemy"),
        ({"wandb": True}, "wandb"),
    ],
)
def test_a_missing_package_says_what_to_install(
    wanted: dict[str, Any], package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TrainerError, match=rf"^--.* needs the package {package}: pip install 'gputui\[trackers\]'$"):
        start_trackers(Settings(output_dir=folder, **wanted))


def use(kind: type[Tracker], settings: Settings, first: int, last: int, *, good: bool = True) -> None:
    """One attempt of a run, as the trainer makes it."""
    tracker = kind(settings)
    for step in range(first, last + 1):
        values = {"loss": 1 / step, "val/loss": math.nan}
        tracker.send(lambda step=step, values=values: tracker.scalars(step, 1000.0 + step, values))  # type: ignore[misc]
    drawn = count("block.0", "gradient", [torch.tensor([-0.5, 0.0, 0.25, 0.25])])
    tracker.send(lambda: tracker.histogram(last, 1000.0, drawn))
    close_all([tracker], good, patience=60)
    assert not tracker.failed


def test_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    use(TensorBoard, Settings(output_dir=folder), 1, 3)
    use(TensorBoard, Settings(output_dir=folder), 4, 5)
    assert len(list((folder / "tensorboard").iterdir())) == 2
    read = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    losses = read.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5]
    assert [event.value for event in losses] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert losses[0].wall_time == 1001.0
    assert math.isnan(read.Scalars("val/loss")[0].value)
    drawn = read.Histograms("gradient/block.0")[0]
    assert (drawn.step, drawn.histogram_value.num, drawn.histogram_value.min) == (3, 4, -0.5)
    assert sum(drawn.histogram_value.bucket) == 4
    [text] = read.Tensors("settings/text_summary")[:1]
    assert b'"steps": 300' in text.tensor_proto.string_val[0]


@pytest.mark.long
def test_mlflow_continues_its_run_and_begins_another_if_that_is_gone(folder: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{folder}/mlflow.db"
    for lr, first, last in ((0.1, 1, 3), (0.2, 3, 4)):
        use(MLflow, Settings(output_dir=folder / "out", mlflow=uri, lr=lr), first, last, good=lr == 0.1)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("trainer").experiment_id
    [run] = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("out", "FAILED")
    assert (run.data.params["lr"], run.data.tags["resumed.lr"]) == ("0.1", "0.2")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.timestamp) for one in history] == [(step, 1_000_000 + 1000 * step) for step in (1, 2, 3, 4)]
    client.delete_run(run.info.run_id)
    use(MLflow, Settings(output_dir=folder / "out", mlflow=uri), 5, 5)
    [other] = client.search_runs([experiment])
    assert other.info.run_id != run.info.run_id and other.info.status == "FINISHED"


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a small .wandb file: one block of a LevelDB log of protocol buffers, after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, position = path.read_bytes(), 7
    assert len(data) < 32768
    while position < len(data):
        _, length, _ = struct.unpack_from("<IHB", data, position)
        yield Record.FromString(data[position + 7 : position + 7 + length])
        position += 7 + length


@pytest.mark.long
def test_wandb_stays_offline_and_keeps_its_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_MODE", "online")
        use(WeightsAndBiases, Settings(output_dir=folder / "out"), 1, 3)
        # wandb names its folders by the second, and a test is faster than any restart.
        (folder / "out" / "wandb").rename(folder / "first")
        use(WeightsAndBiases, Settings(output_dir=folder / "out", lr=0.2), 3, 4, good=False)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    run_id = json.loads((folder / "out" / "trackers" / "wandb.json").read_text())["id"]
    items: list[tuple[str, str]] = []
    for attempt in (folder / "first", folder / "out" / "wandb"):
        [file] = attempt.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")
        for record in wandb_records(file):
            found = [*record.history.item, *record.run.config.update]
            items += [(".".join([one.key, *one.nested_key]).strip("."), one.value_json) for one in found]
            items += [("exit", str(record.exit.exit_code))] if record.HasField("exit") else []
    assert [float(value) for name, value in items if name == "loss"] == [1, 1 / 2, 1 / 3, 1 / 3, 1 / 4]
    assert [value for name, value in items if name in ("lr", "exit")] == ["0.002", "0", "0.2", "1"]
    assert [value for name, value in items if name == "step"] == ["1", "2", "3", "3", "3", "4", "4"]
    assert any(name == "gradient/block.0.values" and value.startswith("[1,") for name, value in items)
