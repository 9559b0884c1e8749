"""The agent's alerts: from samples and lines to rows, across agents, with a silent driver, told within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.machine.gpu_model import GpuEvent, GpuProcess, Inventory, ProcessTick
from gputui.store import alerts
from gputui.store.series import GpuSample
from tests.agent.health.bench import NOW, Bench, train
from tests.homes import GIB, Home
from tests.tables import table
from tests.texts import mentions

COOL = GpuSample("GPU-a", utilization_percent=90.0, memory_used_bytes=10 * GIB, temperature_celsius=60.0,
                 throttle_reasons=(), power_watts=500.0)  # fmt: skip
HOT = replace(COOL, temperature_celsius=88.0)
IDLE = replace(COOL, utilization_percent=20.0, memory_used_bytes=60 * GIB)
PARKED = replace(COOL, utilization_percent=0.0, memory_used_bytes=22 * GIB)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def home(bench: Bench) -> Home:
    return train(bench)


def test_an_alert_is_a_row_and_an_event_and_ends(bench: Bench) -> None:
    bench.pass_time(40, HOT)
    found = alerts.lasting(bench.connection)[0]
    subject = found.rule, found.severity, found.subject_id, found.subject_name
    assert subject == ("gpu_hot", "warning", "GPU-a", "GPU 0")
    assert (found.value, found.threshold, found.unit) == (88.0, 85.0, "°C")
    assert mentions(found.sentence, "GPU 0", "88 °C", "85 °C")
    assert NOW + 1030 <= found.raised_at <= NOW + 1033
    bench.pass_time(70, COOL)
    after = bench.all()[0]
    assert after.cleared_at is not None and after.cleared_because == "back to normal"
    assert bench.events()[0] == found.sentence and "resolved after" in bench.events()[1]


def test_the_next_agent_goes_on(bench: Bench) -> None:
    bench.pass_time(40, HOT)
    assert bench.lasting() == ["gpu_hot"]
    bench.start()
    bench.pass_time(100, HOT)
    bench.pass_time(100)
    assert len(bench.all()) == 1
    bench.start()
    bench.pass_time(70, COOL)
    assert bench.lasting() == [] and len(bench.all()) == 1


def test_a_gpu_that_the_machine_no_longer_has(bench: Bench) -> None:
    bench.pass_time(40, HOT)
    bench.recorder.take([Inventory(bench.wall(), "nvml", "580", ())])
    bench.pass_time(1)
    assert bench.lasting() == []


def test_the_machine_changes_a_threshold(bench: Bench) -> None:
    bench.workspace.alerts.write_text("gpu_hot: {above_celsius: 50, margin_celsius: 0, for: 5 s, severity: error}\n")
    bench.pass_time(8, COOL)
    assert [(one.rule, one.severity, one.threshold) for one in bench.all()] == [("gpu_hot", "error", 50.0)]
    bench.workspace.alerts.write_text("gpu_hot: {above: 1}\n")
    bench.pass_time(8, COOL)
    assert bench.lasting() == ["gpu_hot"] and "stay as they were" in bench.events()[-1]
    bench.workspace.alerts.write_text("gpu_hot: off\n")
    bench.pass_time(8, COOL)
    assert bench.lasting() == [] and bench.all()[0].cleared_because == "the rule is off"


def test_a_silenced_rule_is_stored_and_no_event(bench: Bench) -> None:
    alerts.silence(bench.connection, "gpu_hot", "gpu", "*", until=bench.wall() + 1000, actor="me")
    bench.pass_time(40, HOT)
    assert bench.lasting() == ["gpu_hot"] and bench.events() == []
    assert bench.all()[0].silenced_by == "me"


def test_an_xid_is_told_once_and_memory_by_who_holds_it(bench: Bench) -> None:
    process = GpuProcess(77, 22 * GIB, user="alice", command="python sweep.py")
    bench.recorder.take([GpuEvent(bench.wall(), "GPU-a", "xid", 79, None)])
    bench.recorder.take([ProcessTick(bench.wall(), {"GPU-a": (process,)})])
    bench.pass_time(1803, PARKED)
    assert [one.rule for one in bench.all()] == ["xid_hardware", "gpu_parked"]
    assert "alice · python sweep.py" in bench.all()[1].sentence


# --- runs


def test_a_gpu_that_a_run_claims_and_does_not_use(bench: Bench, home: Home) -> None:
    bench.pass_time(500, IDLE)
    assert bench.lasting() == ["gpu_underused"] and bench.all()[0].run_id == "vit-1"
    bench.living.clear()
    bench.pass_time(2, IDLE)
    assert bench.all()[0].cleared_because == "no longer applies"


def test_nccl_errors_come_from_incidents(bench: Bench, home: Home) -> None:
    bench.pass_time(2, COOL)
    home.incident("vit-1", 1, "nccl_timeout", "rank 1 waited in vain for the other ranks")
    bench.living.clear()
    bench.pass_time(2, COOL)
    assert bench.lasting() == ["nccl_errors"]
    assert mentions(bench.all()[0].sentence, "vit-1: ", "rank 1")
    bench.pass_time(905, COOL)
    assert bench.lasting() == []


Values = Callable[[int], dict[str, float]]


@table("values, found", [
    (lambda step: {"loss": max(2.0, 5.0 - step / 500)}, ["no_improvement"]),
    (lambda step: {"loss": max(1e-3, 5.0 - step / 100), "epoch": step / 20}, []),
    (lambda step: {"step_time": 0.3 if step < 1000 else 0.9}, ["slow_steps"]),
])  # fmt: skip
def test_lines_become_alerts(tmp_path: Path, values: Values, found: list[str]) -> None:
    bench = Bench(tmp_path)
    train(bench)
    for step in range(0, 3500, 10):
        bench.write(step, **values(step))
        bench.pass_time(6, COOL)
    assert bench.lasting() == found


def test_a_profile_changes_its_own_rules(bench: Bench, home: Home) -> None:
    own = {"gradient_norm": {"above": 100}, "lr_off_schedule": {"schedule": "constant"}}
    home.connection.execute("UPDATE runs SET spec = json_set(spec, '$.alerts', json(?))", (json.dumps(own),))
    for step in range(100):
        bench.write(step, grad_norm=50.0, lr=0.002)
        bench.pass_time(1, COOL)
    assert bench.lasting() == ["lr_off_schedule"]
    assert "0.002" in bench.all()[0].sentence and "0.001" in bench.all()[0].sentence
