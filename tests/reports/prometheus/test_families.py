"""Exposed values: units, labels, and nothing for the unknown."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from gputui.core.config import Workspace
from gputui.recovery.watch.rules import RULES as OWN_RULES
from gputui.reports.prometheus import families as families_module
from gputui.reports.prometheus.families import declarations, families
from gputui.reports.prometheus.server import Address, AddressError, parse_address
from gputui.store import placements
from gputui.store.metrics.roles import set_roles
from gputui.store.placements import PlacementView
from gputui.store.runs import read_runs
from tests.homes import NOW, Home
from tests.stories import overnight

NAMES = re.compile(r"gputui_[a-z0-9_]+")
FOLDER = Path(families_module.__file__).parent
SECONDS = {"s": 1, "m": 60, "h": 3600}


@pytest.fixture
def store(home: Home, workspace: Workspace) -> Iterator[sqlite3.Connection]:
    overnight(home)
    yield home.connection


def exposed(store: sqlite3.Connection, now: float = NOW) -> str:
    class Once(Collector):
        def collect(self):  # type: ignore[no-untyped-def]
            return families(store, now)

    registry = CollectorRegistry()
    registry.register(Once())
    return generate_latest(registry).decode()


def value(text: str, name: str, **labels: str) -> float | None:
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
        if match and all(f'{key}="{word}"' in (match.group(1) or "") for key, word in labels.items()):
            return float(match.group(2))
    return None


def test_units_are_base_units_labels_say_who_and_what_is_unknown_is_absent(store: sqlite3.Connection) -> None:
    text = exposed(store)
    for name, labels, expected in (
        ("gpu_utilization_ratio", {"gpu": "0"}, 0.97), ("gpu_memory_total_bytes", {"gpu": "0"}, 80 * 2**30),
        ("gpu_sm_clock_hertz", {"gpu": "0"}, 1.98e9), ("gpu_lease", {"gpu": "2", "run": "gpt2-124m-1"}, 1),
        ("gpu_throttled", {"gpu": "3", "reason": "hardware thermal slowdown"}, 1),
        ("gpu_xid_errors_total", {"gpu": "7", "xid": "79"}, 1), ("host_memory_used_bytes", {}, 88 * 2**30),
        ("run_step", {"run": "vit-b16-1", "rank": "0"}, 9440), ("runs", {"state": "running"}, 2),
        ("run_incidents_total", {"run": "vit-b16-1", "kind": "cuda_oom"}, 1), ("gpu_up", {"gpu": "7"}, 0),
        ("gpu_power_watts", {"gpu": "7"}, None), ("gpu_power_watts", {"gpu": "6"}, 540),
    ):  # fmt: skip
        assert value(text, f"gputui_{name}", **labels) == expected, (name, labels)
    assert "gputui_gpu_fan_ratio" not in text
    set_roles(store, "vit-b16-1", "lr", best=None, mode=None)
    loss, rate = (value(exposed(store), f"gputui_run_{name}", run="vit-b16-1") for name in ("loss", "learning_rate"))
    assert loss == rate is not None, "the loss is what the run calls so"
    stale = exposed(store, NOW + 3600)
    assert "gputui_gpu_power_watts{" not in stale
    assert "gputui_host_" not in stale
    assert "gputui_gpu_info{" in stale
    # Steps that a target wrote after the last contact with it.
    name = "gputui_run_step_age_seconds"
    rank = {"run": "vit-b16-1", "rank": "0"}
    age = value(text, name, **rank)
    assert age is not None
    assert value(stale, name, **rank) == age + 3600
    (run,) = [run for run in read_runs(store) if run.run_id == "vit-b16-1"]
    placements.write(store, run.run_id, run.attempt, PlacementView("running", contact_at=NOW + 60))
    assert value(exposed(store, NOW + 3600), name, **rank) == age + 60


def test_a_divergence_is_told_and_hostile_names_stay_one_harmless_label(home: Home, workspace: Workspace) -> None:
    home.run("bad-1", name='a"} 1\ngputui_gpu_up{gpu="0"} \x1b[2J')
    home.attempt("bad-1", 1)
    home.metrics("bad-1", 1, [{"step": 4, "loss": float("nan"), "grad_norm": float("inf"), "rank": 0}])
    text = exposed(home.connection)
    assert re.search(r"gputui_run_loss\{.*\} NaN", text)
    assert re.search(r"gputui_run_gradient_norm\{.*\} \+Inf", text)
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("gputui_gpu_up")]


# An alert, gputui's own rule, and which of its limits (None: its span) are in the expression, in base units.
SAME_RULES = {
    "GpuLost": ("gpu_lost", {}),
    "GpuHot": ("gpu_hot", {"above_celsius": 1.0, "margin_celsius": 1.0}),
    "GpuMemoryFull": ("gpu_memory", {"above_percent": 0.01}),
    "GpuXid": ("xid", None),
    "GpuMemoryErrors": ("ecc", None),
    "RunWaitsForData": ("data_wait", {"above_percent": 0.01, "above_milliseconds": 0.001}),
    "HostMemoryNearlyFull": ("host_memory", {"above_percent": 0.01}),
    "DiskNearlyFull": ("disk", {"above_percent": 0.01}),
    "SharedMemoryNearlyFull": ("shm", {"above_percent": 0.01}),
}


def test_rules_and_dashboard_ask_for_what_there_is_with_the_limits_of_gputui(store: sqlite3.Connection) -> None:
    names = [f"gputui_{family[1]}" for family in declarations(store, NOW)]
    metrics = {"gputui_store_readable", *names, *(f"{name}_total" for name in names)}
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    queried = {
        name for panel in panels for target in panel.get("targets", ()) for name in NAMES.findall(target["expr"])
    }
    assert len(queried) > 20, queried - metrics
    assert queried <= metrics, queried - metrics
    [group] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert set(SAME_RULES) < set(rules)
    for name, rule in rules.items():
        assert set(NAMES.findall(rule["expr"])) <= metrics, name
        if name not in SAME_RULES:
            continue
        rule_id, limits = SAME_RULES[name]
        rule_of_gputui = OWN_RULES[rule_id]
        assert int(rule["for"][:-1]) * SECONDS[rule["for"][-1]] == rule_of_gputui.for_seconds, name
        expected = "critical" if rule_of_gputui.severity == "error" else "warning"
        assert rule["labels"]["severity"] == expected, name
        numbers = {float(text) for text in re.findall(r"[>-] ([\d.]+)", rule["expr"])}
        if limits is None:
            [(span, unit)] = re.findall(r"\[(\d+)([smh])\]", rule["expr"])
            assert int(span) * SECONDS[unit] == rule_of_gputui.clear_seconds, name
        elif limits:
            defaults = {threshold.name: threshold.default for threshold in rule_of_gputui.thresholds}
            assert numbers == {round(defaults[key] * unit, 9) for key, unit in limits.items()}, name


def test_addresses_are_on_loopback_unless_told_otherwise() -> None:
    addresses = {
        "127.0.0.1:9464": Address("127.0.0.1", 9464), ":9464": Address("127.0.0.1", 9464),
        "9464": Address("127.0.0.1", 9464), "[::1]:0": Address("::1", 0), "0.0.0.0:1": Address("0.0.0.0", 1),
    }  # fmt: skip
    assert {text: parse_address(text) for text in addresses} == addresses
    assert [text for text, address in addresses.items() if not address.is_loopback] == ["0.0.0.0:1"]
    for text in ("", "localhost", "x:y", "1.2.3.4:70000", "a:-1", "9٤"):
        with pytest.raises(AddressError, match="HOST:PORT"):
            parse_address(text)
