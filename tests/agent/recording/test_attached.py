"""Two recorders of one home: real processes, of which any may end first."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gputui.agent import startup
from gputui.agent.recording.attached import StoredSamples
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuEvent, GpuFacts, Inventory, SlowTick
from gputui.runs.agent_process import read_identity
from gputui.store.series import GpuSample, GpuSlowSample, HostSample
from tests.conftest import wait_until
from tests.homes import open_store
from tests.machines import Machine


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\nseed: 71\n")
    return machine


class Recording:
    """A recorder with an endpoint and a file of samples."""

    def __init__(self, machine: Machine, name: str, *arguments: str) -> None:
        self.file = machine.folder / f"{name}.ndjson"
        options = ("--prometheus", "127.0.0.1:0", "--output", str(self.file), "--interval", "0.2", *arguments)
        self.process: subprocess.Popen[str] = machine.start("--record", *options)
        assert self.process.stderr is not None
        address = re.search(r"http://\S+", self.process.stderr.readline())
        assert address is not None
        self.url = address.group()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def is_serving(self) -> bool:
        count = len(self.lines())
        wait_until(lambda: len(self.lines()) > count, what=f"new lines of {self.file.name}")
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            return b"gputui_gpu_power_watts{" in answer.read()

    def end(self, number: int = signal.SIGINT) -> str:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return errors


def recorder_of(workspace: Workspace) -> int | None:
    identity = read_identity(workspace)
    return identity.process.pid if identity is not None and identity.recording and identity.ready else None


def test_a_second_recorder_serves_its_outputs_beside_the_first(machine: Machine) -> None:
    first = Recording(machine, "first")
    wait_until(lambda: recorder_of(machine.workspace), what="the first recorder")
    second = Recording(machine, "second")
    assert second.is_serving()
    assert first.is_serving()
    assert recorder_of(machine.workspace) == first.process.pid
    machine.gputui("--record", "--duration", "1", "--json")
    errors = second.end()
    assert "records here already" in errors
    assert "recording every" not in errors
    assert first.is_serving()
    kinds = {(line["kind"], line.get("gpu")) for line in second.lines()}
    assert {("gpu", 0), ("gpu", 1), ("host", None)} <= kinds
    assert "recording every 0.2 s" in first.end()
    assert recorder_of(machine.workspace) is None


def test_the_second_records_on_when_the_first_ends_but_not_after_agent_stop(machine: Machine) -> None:
    first = Recording(machine, "first")
    wait_until(lambda: recorder_of(machine.workspace), what="the first recorder")
    second = Recording(machine, "second")
    assert second.is_serving()
    first.end(signal.SIGTERM)
    wait_until(lambda: recorder_of(machine.workspace) == second.process.pid, what="the second to record")
    assert second.is_serving()
    third = Recording(machine, "third")
    assert third.is_serving()
    machine.gputui("agent", "stop")
    for recording in (second, third):
        _, errors = recording.process.communicate(timeout=60)
        assert recording.process.returncode == 0, errors
    assert recorder_of(machine.workspace) is None


def test_a_signal_between_two_recorders_is_not_lost(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the first has ended, and the agent of the second does not handle signals yet."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    identity = SimpleNamespace(ready=True, process=SimpleNamespace(pid=1))
    locks = [None, object()]
    agent = SimpleNamespace(stopping=False, context=SimpleNamespace(recorder=SimpleNamespace(host=None)))

    def run(_workspace: object, _options: object, _lock: object, on_second: Callable[[Any], None]) -> int:
        signal.raise_signal(signal.SIGTERM)
        on_second(agent)
        return 0

    monkeypatch.setattr(startup, "_take_over", lambda _: locks.pop(0))
    monkeypatch.setattr(startup, "read_identity", lambda _: identity)
    monkeypatch.setattr(startup, "follow", lambda *_, **__: True)
    monkeypatch.setattr(startup, "_run", run)
    try:
        startup.run_recorder(workspace, interval_seconds=1.0, duration_seconds=None, as_json=True, output=io.StringIO())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert agent.is_stopping


def test_what_is_read_back_is_what_was_recorded_and_each_message_once(tmp_path: Path) -> None:
    connection = open_store(tmp_path / "store.db")
    recorder = Recorder(connection, tmp_path / "runs", lambda: 100.0)
    facts = (GpuFacts("GPU-a", 0, "H100"), GpuFacts("GPU-b", 1, "H100"))
    messages = [
        FastTick(10.0, (GpuSample("GPU-a", power_watts=300.5, throttle_reasons=("thermal",)), GpuSample("GPU-b"))),
        SlowTick(10.5, (GpuSlowSample("GPU-b", energy_joules=12.5, row_remap_failed=False),)),
        HostSample(11.0, cpu_percent=3.5),
        GpuEvent(12.0, "GPU-b", "xid", 79, "fell off"),
    ]
    stored = StoredSamples(connection, 9.0)
    recorder.take(
        [Inventory(9.0, "nvml", driver_version=None, gpus=facts), FastTick(8.0, (GpuSample("GPU-a"),)), *messages]
    )
    recorder.flush()
    assert stored.read() == messages
    assert stored.read() == []
    assert stored.indices == {"GPU-a": 0, "GPU-b": 1}
    recorder.take([later := HostSample(12.5, cpu_percent=4.0)])
    recorder.flush()
    assert stored.read() == [later] == [stored.host]
