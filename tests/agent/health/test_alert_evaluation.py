"""The agent's alerts: from samples and lines to rows, across agents, with a silent driver, told within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.machine.gpu_model import GpuEvent, GpuProcess, Inventory, ProcessTick
from gputui.store import alerts
from gputui.store.series import GpuSample
from tests.agent.health.watched_home import GPU, WatchedHome
from tests.homes import GIB, NOW
from tests.texts import mentions

COOL = GpuSample(GPU, utilization_percent=90.0, memory_used_bytes=10 * GIB, temperature_celsius=60.0,
                 throttle_reasons=(), power_watts=500.0)  # fmt: skip
HOT = replace(COOL, temperature_celsius=88.0)
IDLE = replace(COOL, utilization_percent=20.0, memory_used_bytes=60 * GIB)
PARKED = replace(COOL, utilization_percent=0.0, memory_used_bytes=22 * GIB)

Values = Callable[[int], dict[str, float]]


@pytest.fixture
def home(workspace: Workspace) -> Iterator[WatchedHome]:
    with closing(WatchedHome(workspace)) as home:
        yield home


@pytest.fixture
def training(home: WatchedHome) -> WatchedHome:
    home.train()
    return home


def test_an_alert_is_a_row_and_an_event_and_ends(home: WatchedHome) -> None:
    home.go_on(40, HOT)
    alert = alerts.lasting(home.connection)[0]
    subject = alert.rule, alert.severity, alert.subject_id, alert.subject_name
    assert subject == ("gpu_hot", "warning", GPU, "GPU 0")
    assert (alert.value, alert.threshold, alert.unit) == (88.0, 85.0, "°C")
    assert mentions(alert.sentence, "GPU 0", "88 °C", "85 °C")
    assert NOW + 30 <= alert.raised_at <= NOW + 33
    home.go_on(70, COOL)
    after = home.lasting_and_cleared()[0]
    assert after.cleared_at is not None
    assert after.cleared_because == "back to normal"
    assert home.events()[0] == alert.sentence
    assert "resolved after" in home.events()[1]


def test_the_next_agent_goes_on(home: WatchedHome) -> None:
    home.go_on(40, HOT)
    assert home.lasting() == ["gpu_hot"]
    home.start()
    home.go_on(100, HOT)
    home.go_on(100)
    assert len(home.lasting_and_cleared()) == 1
    home.start()
    home.go_on(70, COOL)
    assert home.lasting() == []
    assert len(home.lasting_and_cleared()) == 1


def test_a_gpu_that_the_machine_no_longer_has(home: WatchedHome) -> None:
    home.go_on(40, HOT)
    home.recorder.take([Inventory(home.now, "nvml", "580", ())])
    home.go_on(1)
    assert home.lasting() == []


def test_the_machine_changes_a_threshold(home: WatchedHome) -> None:
    home.workspace.alerts.write_text("gpu_hot: {above_celsius: 50, margin_celsius: 0, for: 5 s, severity: error}\n")
    home.go_on(8, COOL)
    assert [(alert.rule, alert.severity, alert.threshold) for alert in home.lasting_and_cleared()] == [
        ("gpu_hot", "error", 50.0)
    ]
    home.workspace.alerts.write_text("gpu_hot: {above: 1}\n")
    home.go_on(8, COOL)
    assert home.lasting() == ["gpu_hot"]
    assert "stay as they were" in home.events()[-1]
    home.workspace.alerts.write_text("gpu_hot: off\n")
    home.go_on(8, COOL)
    assert home.lasting() == []
    assert home.lasting_and_cleared()[0].cleared_because == "the rule is off"


def test_a_silenced_rule_is_stored_and_no_event(home: WatchedHome) -> None:
    alerts.silence(home.connection, "gpu_hot", "gpu", "*", ends_at=home.now + 1000, actor="me")
    home.go_on(40, HOT)
    assert home.lasting() == ["gpu_hot"]
    assert home.events() == []
    assert home.lasting_and_cleared()[0].silenced_by == "me"


def test_an_xid_is_told_once_and_memory_by_who_holds_it(home: WatchedHome) -> None:
    process = GpuProcess(77, 22 * GIB, user="alice", command="python sweep.py")
    home.recorder.take([GpuEvent(home.now, GPU, "xid", 79, text=None)])
    home.recorder.take([ProcessTick(home.now, {GPU: (process,)})])
    home.go_on(1803, PARKED)
    assert [alert.rule for alert in home.lasting_and_cleared()] == ["xid_hardware", "gpu_parked"]
    assert "alice · python sweep.py" in home.lasting_and_cleared()[1].sentence


# --- runs


def test_a_gpu_that_a_run_claims_and_does_not_use(training: WatchedHome) -> None:
    training.go_on(500, IDLE)
    assert training.lasting() == ["gpu_underused"]
    assert training.lasting_and_cleared()[0].run_id == "vit-1"
    training.living.clear()
    training.go_on(2, IDLE)
    assert training.lasting_and_cleared()[0].cleared_because == "no longer applies"


def test_nccl_errors_come_from_incidents(training: WatchedHome) -> None:
    training.go_on(2, COOL)
    training.incident("vit-1", 1, "nccl_timeout", "rank 1 waited in vain for the other ranks")
    training.living.clear()
    training.go_on(2, COOL)
    assert training.lasting() == ["nccl_errors"]
    assert mentions(training.lasting_and_cleared()[0].sentence, "vit-1: ", "rank 1")
    training.go_on(905, COOL)
    assert training.lasting() == []


@pytest.mark.parametrize(("values", "expected"), [
    (lambda step: {"loss": max(2.0, 5.0 - step / 500)}, ["no_improvement"]),
    (lambda step: {"loss": max(1e-3, 5.0 - step / 100), "epoch": step / 20}, []),
    (lambda step: {"step_time": 0.3 if step < 1000 else 0.9}, ["slow_steps"]),
])  # fmt: skip
def test_lines_become_alerts(training: WatchedHome, values: Values, expected: list[str]) -> None:
    for step in range(0, 3500, 10):
        training.write(step, **values(step))
        training.go_on(6, COOL)
    assert training.lasting() == expected


def test_a_profile_changes_its_own_rules(training: WatchedHome) -> None:
    rules = {"gradient_norm": {"above": 100}, "lr_off_schedule": {"schedule": "constant"}}
    training.connection.execute("UPDATE runs SET spec = json_set(spec, '$.alerts', json(?))", (json.dumps(rules),))
    for step in range(100):
        training.write(step, grad_norm=50.0, lr=0.002)
        training.go_on(1, COOL)
    assert training.lasting() == ["lr_off_schedule"]
    assert "0.002" in training.lasting_and_cleared()[0].sentence
    assert "0.001" in training.lasting_and_cleared()[0].sentence
