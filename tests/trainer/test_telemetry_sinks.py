"""Feeding trackers: in order, beside the training, and left out once they fail."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Settings
from trainer.errors import SettingsError, TrainerError
from trainer.telemetry.histograms import Histogram
from trainer.telemetry.sinks import SinkFeed, close_all
from trainer.telemetry.trackers import wanted_sinks

EMPTY = Histogram("block", "gradient", (), (), None, None, None, None, None, 0, 0)


class Recorder:
    """A sink that writes down its calls. `break_at` names the call that raises `error`; `gate` holds up `open`."""

    name = "Recorder"

    def __init__(
        self, break_at: str = "", gate: threading.Event | None = None, error: BaseException | None = None
    ) -> None:
        self.calls: list[Any] = []
        self.threads: set[int] = set()
        self._break_at = break_at
        self._gate = gate
        self._error = error or ConnectionError("the server\nis gone")

    def _note(self, name: str, *details: object) -> None:
        self.threads.add(threading.get_ident())
        if name == self._break_at:
            raise self._error
        if name != "flush":
            self.calls.append((name, *details))

    def open(self) -> None:
        if self._gate:
            self._gate.wait(120)
        self._note("open")

    def settings(self, values: Mapping[str, Any]) -> None:
        self._note("settings", values)

    def scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        self._note("scalars", step, values)

    def histogram(self, step: int, moment: float, histogram: Histogram) -> None:
        self._note("histogram", step, histogram.name)

    def flush(self) -> None:
        self._note("flush")

    def close(self, good: bool) -> None:
        self._note("close", good)


def test_everything_arrives_in_order_on_a_thread_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Recorder()
    feed = SinkFeed(sink)
    values = {"loss": 1.0}
    feed.settings({"seed": 1})
    feed.scalars(1, values)
    values["loss"] = 0.5  # the caller may use its dictionary again
    feed.scalars(2, values)
    feed.histogram(2, EMPTY)
    close_all([feed], good=False)
    feed.scalars(3, values)
    assert sink.calls == [
        ("open",),
        ("settings", {"seed": 1}),
        ("scalars", 1, {"loss": 1.0}),
        ("scalars", 2, {"loss": 0.5}),
        ("histogram", 2, "block"),
        ("close", False),
    ]
    assert len(sink.threads) == 1 and threading.get_ident() not in sink.threads
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("call", ["open", "scalars", "flush", "close"])
def test_a_sink_that_fails_is_named_once_and_left_out(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    sink = Recorder(break_at=call)
    feed = SinkFeed(sink, flush_seconds=0.001)
    feed.scalars(1, {"loss": 1.0})
    feed.scalars(2, {"loss": 1.0})
    close_all([feed])
    assert feed.failed
    assert capsys.readouterr().err == (
        "trainer: Recorder failed and is left out from now on: ConnectionError: the server is gone; training goes on\n"
    )
    feed.scalars(3, {"loss": 1.0})
    close_all([feed])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("call", "ended"), [("scalars", True), ("flush", True), ("open", False)])
def test_a_tracker_that_fails_in_the_middle_has_its_run_ended(call: str, ended: bool) -> None:
    sink = Recorder(break_at=call)
    feed = SinkFeed(sink, flush_seconds=0.001)
    feed.scalars(1, {"loss": 1.0})
    close_all([feed])
    assert [entry for entry in sink.calls if entry[0] == "close"] == ([("close", False)] if ended else [])


def test_a_library_that_exits_is_a_failure_too(capsys: pytest.CaptureFixture[str]) -> None:
    feed = SinkFeed(Recorder(break_at="scalars", error=SystemExit("no more")))
    feed.scalars(1, {"loss": 1.0})
    close_all([feed])
    assert feed.failed
    assert "Recorder failed and is left out from now on: SystemExit: no more;" in capsys.readouterr().err


def test_a_sink_that_hangs_holds_up_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    sink = Recorder(gate=gate)
    feed = SinkFeed(sink, length=2)
    for step in range(5):
        feed.scalars(step, {"loss": 1.0})
    close_all([feed], patience=0.01)
    gate.set()
    assert feed.wait_until(time.monotonic() + 120)
    assert [call[1] for call in sink.calls if call[0] == "scalars"] == [0, 1]
    slow, late = capsys.readouterr().err.splitlines()
    assert "Recorder is too slow: values are left out" in slow
    assert "did not take its last values within 0.01 s" in late


def test_sinks_that_hang_share_one_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    feeds = [SinkFeed(Recorder(gate=gate)) for _ in range(4)]
    began = time.monotonic()
    close_all(feeds, patience=1.0)
    assert time.monotonic() - began < 4.0
    gate.set()
    assert capsys.readouterr().err.count("did not take its last values within 1 s") == 4


def settings(folder: Path, **wanted: Any) -> Settings:
    return Settings(output_dir=folder, **wanted)


def test_no_tracker_unless_asked_for(folder: Path) -> None:
    assert wanted_sinks(settings(folder)) == []


def test_every_tracker_that_is_asked_for(folder: Path) -> None:
    asked = settings(folder, tensorboard=True, mlflow="sqlite:///x.db", wandb=True)
    assert [sink.name for sink in wanted_sinks(asked)] == ["TensorBoard", "MLflow", "Weights & Biases"]
    assert list(folder.iterdir()) == []  # none of them has begun


@pytest.mark.parametrize(
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
        wanted_sinks(settings(folder, **wanted))


@pytest.mark.parametrize("uri", ["runs/mlflow", "file:///tmp/mlflow"])
def test_mlflow_in_a_folder_is_refused_with_what_to_do(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(SettingsError, match="MLFLOW_ALLOW_FILE_STORE=true is set; use a database, such as sqlite:///"):
        wanted_sinks(settings(folder, mlflow=uri))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert [sink.name for sink in wanted_sinks(settings(folder, mlflow=uri))] == ["MLflow"]


def test_mlflow_on_a_server_needs_no_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert [sink.name for sink in wanted_sinks(settings(folder, mlflow="http://localhost:5000"))] == ["MLflow"]
