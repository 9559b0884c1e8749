"""Every rule fires on what it is for, and not on what only looks like it; durations, hysteresis and cool-down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gputui.machine.gpu_model import GpuFacts
from gputui.recovery.watch.learning_rate import RateSchedule
from gputui.recovery.watch.rules import RULES
from tests.recovery.watch.scenes import GIB, UNKNOWN, Scene, Stage
from tests.tables import table
from tests.texts import mentions

QUICK = {"for_seconds": 10.0, "clear_seconds": 5.0, "cooldown_seconds": 100.0}
R = ["raised"]
C = ["cleared"]

USED = "memory_used_bytes"
TOTAL = "memory_total_bytes"
REMAP = {"row_remap_pending": True}
PARKED = {"utilization_percent": 0.0, USED: 22 * GIB, "holder": "alice · python sweep.py"}
THERMAL = {"throttle_reasons": ("power cap", "hardware thermal")}

FULL = {USED: 78 * GIB}
EDGE = {USED: 75 * GIB}
FREE = {USED: 40 * GIB}
HIDDEN = {USED: None}


@dataclass(frozen=True)
class Case:
    """``fires`` raises the rule with this sentence, each of ``quiet`` does not. After ``well`` seconds as usual, or of
    what is ``better``, it is cleared."""

    fires: Scene
    sentence: str
    quiet: dict[str, Scene]
    well: float = 0.0
    better: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)


def slows_at(celsius: float) -> GpuFacts:
    return GpuFacts("GPU-a", 3, "x", temperature_slowdown_celsius=celsius)


def grows(gb_per_hour: float, noise: float = 0.0, since: int = 0) -> dict[str, Any]:
    """Memory in use that grows from a second on, and goes up and down with a period of 1000 s."""
    wave = 2 * math.pi / 1000
    return {
        USED: lambda second: int(
            88e9 + max(0, second - since) * gb_per_hour * 1e9 / 3600 + noise * math.sin(second * wave)
        )
    }


CASES: dict[str, Case] = {
    "gpu_lost": Case(
        [({"state": "lost"}, 1)], "GPU 3 is lost: the driver does not answer for it",
        {"a driver that is silent": [({"is_unknown": True}, 600)]},
    ),
    "xid_hardware": Case(
        [({"xids": (79,)}, 1)],
        "GPU 3 reported XID 79: the GPU has fallen off the bus (power, cooling or PCIe); a reboot is needed",
        {"an error of the program": [({"xids": (13, 31)}, 1)], "what a kill leaves": [({"xids": (43, 45)}, 1)]},
    ),
    "xid": Case(
        [({"xids": (45, 31)}, 1)],
        "GPU 3 reported XID 31: memory page fault, mostly an error of the program (illegal address)",
        {"only what a kill leaves": [({"xids": (45,)}, 1)], "one of the hardware": [({"xids": (48,)}, 1)]},
    ),
    "ecc": Case(
        [({}, 1), ({"slow": {"ecc_uncorrected": 9}}, 1)], "GPU 3 counted 2 new uncorrected memory errors",
        {"none new": [({}, 60)], "no counter": [({}, 1), ({"slow": {}}, 60)],
         "a driver that begins anew": [({}, 1), ({"slow": {"ecc_uncorrected": 2}}, 60)]},
        well=3610.0,
    ),
    "row_remap": Case(
        [({"slow": REMAP}, 1)], "GPU 3: a bad memory row waits to be remapped",
        {"nothing pending": [({}, 60)], "not told": [({"slow": {}}, 60)]},
    ),
    "gpu_memory": Case(
        [({USED: 78 * GIB}, 302)], "GPU 3 memory 98 % used (limit 95 %)",
        {"a peak of four minutes": [({USED: 78 * GIB}, 240), ({}, 5)] * 5,
         "the driver's own share left out": [({USED: 75 * GIB}, 900)],
         "memory of the host": [({USED: 79 * GIB, "facts": GpuFacts(
             "GPU-a", 3, "x", memory_total_bytes=80 * GIB, memory_is_unified=True)}, 900)]},
    ),
    "gpu_hot": Case(
        [({"temperature_celsius": 83.0, "facts": slows_at(87.0)}, 32)],
        "GPU 3 at 83 °C (limit 82 °C); throttles at 87 °C",
        {"warm": [({"temperature_celsius": 84.0}, 600)],
         "hot for one sample": [({"temperature_celsius": 91.0}, 2), ({}, 60)],
         "an unknown slowdown": [({"temperature_celsius": 83.0, "facts": slows_at(0.0)}, 60)]},
    ),
    "gpu_throttled": Case(
        [(THERMAL, 40)], "GPU 3 was throttled for 33 % of the last minute: hardware thermal",
        {"a flicker": [(THERMAL, 1), ({}, 9)] * 60, "not told": [({"throttle_reasons": None}, 600)],
         "a power cap": [({"throttle_reasons": ("power cap",)}, 600)]},
        well=200.0,
    ),
    "gpu_underused": Case(
        [({"utilization_percent": 31.0}, 360)], "GPU 3 is used 31 % by vit-1, less than 50 %",
        {"nobody trains there": [({"utilization_percent": 0.0, "training": None}, 900)],
         "a validation of four minutes": [({"utilization_percent": 20.0}, 240), ({}, 120)] * 4,
         "bursts": [({"utilization_percent": 100.0}, 8), ({"utilization_percent": 0.0}, 2)] * 90},
        well=200.0,
    ),
    "gpu_parked": Case(
        [(PARKED, 1802)], "GPU 3 has 22.0 GiB held by alice · python sweep.py and computes nothing",
        {"an empty GPU": [({**PARKED, USED: GIB // 2}, 4000)],
         "it computes now and then": [(PARKED, 1500), ({**PARKED, "utilization_percent": 3.0}, 1)] * 3},
    ),
    "power_trend": Case(
        [({}, 3700), ({"power_watts": 300.0}, 500)], "GPU 3: power fell from 556 W to 385 W under vit-1",
        {"the run has ended": [({}, 3700), ({"power_watts": 80.0, "training": None}, 900)],
         "not yet an hour": [({}, 1500), ({"power_watts": 80.0}, 900)],
         "another attempt": [({}, 3700), ({"power_watts": 300.0, "training": ("vit-1", 2)}, 900)]},
        well=2000.0,
    ),
    "host_memory": Case(
        [({USED: 250 * GIB}, 62)], "Host memory 98 % used (limit 92 %)",
        {"a lot, but room": [({USED: 230 * GIB}, 600)]},
    ),
    "host_memory_growth": Case(
        [(grows(6.0), 2000)], "The host's memory fills by 6.0 GB/h; full in 30.6 h",
        {"it shrinks": [(grows(-9.0), 4000)], "slowly": [(grows(1.5), 4000)], "noise": [(grows(0.0, 3e9), 6000)],
         "the start of a run": [({}, 1000), ({USED: 200 * GIB}, 3000)],
         "hours that nobody saw": [({}, 1000), ({"is_unknown": True}, 9000), ({USED: 200 * GIB}, 1000)]},
        well=2600.0,
    ),
    "disk": Case(
        [({"disk_used_bytes": 960 * GIB}, 62)], "State disk 96 % full (limit 95 %)",
        {"94 %": [({"disk_used_bytes": 940 * GIB}, 600)], "unknown": [({"disk_used_bytes": None}, 600)]},
    ),
    "shm": Case(
        [({"shm_used_bytes": 93 * GIB}, 32)], "/dev/shm 93 % full (limit 90 %)",
        {"none there": [({"shm_used_bytes": 0, "shm_total_bytes": 0}, 600)]},
    ),
    "nccl_errors": Case(
        [({"error": "rank 2 waited in vain for the other ranks"}, 1)],
        "vit-1: rank 2 waited in vain for the other ranks", {"none": [({}, 600)]},
    ),
    "no_improvement": Case(
        [({"loss": lambda second: max(1.902, 5 - second / 100)}, 1050)],
        "vit-1: loss: no improvement for 6 000 steps (best 1.902 at step 3 610)",
        {"less than ten minutes": [({"loss": 2.0}, 600)], "it falls slowly": [({}, 3000)],
         "it has converged": [({"loss": lambda second: max(1e-3, 5 - second / 100)}, 3000)]},
        well=300.0, better={"loss": lambda second: 1.9 - second / 1e4},
    ),
    "gradient_norm": Case(
        [({"grad_norm": 14.0}, 32)], "vit-1: gradient norm 14 (limit 10)",
        {"one step": [({"grad_norm": 300.0}, 2), ({}, 60)], "at ten": [({"grad_norm": 10.0}, 600)]},
    ),
    "slow_steps": Case(
        [({}, 60), ({"step_time": 0.9}, 200)], "vit-1: step time 863 ms (limit 600 ms); it was about 300 ms before",
        {"a large model": [({"step_time": 3.0}, 60), ({"step_time": 3.1}, 600)],
         "fast steps that became less fast": [({"step_time": 0.02}, 60), ({"step_time": 0.09}, 600)],
         "the first steps, which compile": [({"step_time": 9.0}, 9), ({}, 600)]},
        well=200.0,
    ),
    "data_wait": Case(
        [({"data_time": 0.08}, 120)], "vit-1: data wait 80 ms a step (limit 50 ms), 27 % of a step",
        {"little of a long step": [({"data_time": 0.06, "step_time": 3.0}, 600)],
         "most of a short step": [({"data_time": 0.02, "step_time": 0.025}, 600)],
         "one step of many": [({"data_time": 0.5}, 1), ({"data_time": 0.0}, 29)] * 20},
        well=200.0,
    ),
    "cache_misses": Case(
        [({"cache_hit_rate": 0.55}, 240)], "vit-1: cache hits 55 % (limit 80 %)",
        {"the first epoch fills it": [({"epoch": 0.0, "cache_hit_rate": 0.02}, 600)],
         "no cache": [({"cache_hit_rate": None}, 600)]},
        well=300.0,
    ),
    "skipped_samples": Case(
        [({"samples": 3720.0, "skipped_samples": 280.0}, 12)],
        "vit-1: 7 % of the samples unreadable (limit 5 %)",
        {"two of the first twenty": [({"samples": 18.0, "skipped_samples": 2.0}, 600)]},
    ),
    "lr_off_schedule": Case(
        [({"lr": 0.002}, 32)], "vit-1: the learning rate is 0.002, its schedule says 0.001",
        {"a script that says so": [({"lr": 0.002, "lr_expected": 0.002}, 600)]},
        stage={"schedule": RateSchedule("constant", peak=0.001)},
    ),
}  # fmt: skip


@table("rule_id", RULES)
def test_it_fires_and_clears_when_all_is_well_again(rule_id: str) -> None:
    case = CASES[rule_id]
    stage = Stage(rule_id, **case.stage)
    assert stage.play(case.fires) == ["raised"]
    assert stage.sentence == case.sentence
    assert stage.play([(case.better, case.well or RULES[rule_id].clear_seconds + 2)]) == ["cleared"]


@table(("rule_id", "name"), [(rule, name) for rule, case in CASES.items() for name in case.quiet])
def test_a_look_alike_does_not_fire(rule_id: str, name: str) -> None:
    case = CASES[rule_id]
    assert Stage(rule_id, **case.stage).play(case.quiet[name]) == []


@table("rule_id", [rule for rule in RULES if rule != "skipped_samples"])
def test_what_is_unknown_neither_raises_nor_clears(rule_id: str) -> None:
    unknown = [(UNKNOWN[RULES[rule_id].subject], 5000.0)]
    stage = Stage(rule_id, **CASES[rule_id].stage)
    assert stage.play(unknown) == []
    assert stage.play(CASES[rule_id].fires) == ["raised"]
    assert stage.play(unknown) == []
    assert stage.is_raised


def test_epochs_are_judged_by_the_validation() -> None:
    stage = Stage("no_improvement")
    epoch = {"epoch": lambda second: second / 100, "val/loss": 2.01}
    assert stage.play([(epoch, 1200)]) == ["raised"]
    assert mentions(stage.sentence, "val/loss", "10.0 epochs", "2.010", "step 10")


@table("norm", [math.nan, math.inf])
def test_gradients_that_are_no_number_count_as_large(norm: float) -> None:
    assert Stage("gradient_norm").play([({"grad_norm": norm}, 40)]) == ["raised"]


# --- the engine -------------------------------------------------------------------------------------------------------


@table("override, scenes", [
    # A value between limit and hysteresis changes nothing.
    ({}, [([(FULL, 301), (EDGE, 5000)], R), ([(FREE, 59), (EDGE, 5), (FREE, 60)], []), ([(FREE, 1)], C)]),
    # It is not raised again during the cool-down.
    (QUICK, [([(FULL, 11), (FREE, 6)], R + C), ([(FULL, 99)], []), ([(FULL, 1)], R)]),
    # Time without readings counts neither for raising nor for clearing.
    ({}, [([(FULL, 200), (HIDDEN, 4000), (FULL, 100)], []), ([(FULL, 2)], R),
          ([(FREE, 50), (HIDDEN, 4000), (FREE, 5)], []), ([(FREE, 10)], C)]),
])  # fmt: skip
def test_the_life_of_an_alert(override: dict[str, float], scenes: list[tuple[Scene, list[str]]]) -> None:
    stage = Stage("gpu_memory", **override)
    for scene, said in scenes:
        assert stage.play(scene) == said


def test_a_rule_that_is_switched_off_clears_its_alerts() -> None:
    stage = Stage("gpu_memory")
    stage.play([(FULL, 301)])
    off = Stage("gpu_memory", stage.engine, enabled=False)
    assert off.play([(FULL, 1)]) == ["cleared"]
    assert off.changes[-1].why == "the rule is off"
    assert off.play([(FULL, 5000)]) == []
