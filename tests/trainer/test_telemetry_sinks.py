"""Feeding trackers: in order, beside the training, and left out once they fail."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tables import table
from tests.texts import mentions
from trainer.config import Settings
from trainer.errors import TrainerError
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


@table("call", ["open", "scalars", "flush", "close"])
def test_a_sink_that_fails_is_named_once_and_left_out(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    sink = Recorder(break_at=call)
    feed = SinkFeed(sink, flush_seconds=0.001)
    feed.scalars(1, {"loss": 1.0})
    feed.scalars(2, {"loss": 1.0})
    close_all([feed])
    assert feed.failed
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and mentions(shown, "trainer: Recorder", "ConnectionError: the server is gone")
    feed.scalars(3, {"loss": 1.0})
    close_all([feed])
    assert capsys.readouterr().err == ""


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
    assert mentions(slow, "Recorder", "too slow") and mentions(late, "last values", "0.01 s")


def settings(folder: Path, **wanted: Any) -> Settings:
    return Settings(output_dir=folder, **wanted)


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
        wanted_sinks(settings(folder, **wanted))
