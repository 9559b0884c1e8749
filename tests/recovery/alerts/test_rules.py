"""Every rule fires on what it is for, and not on what only looks like it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gputui.recovery.alerts.moments import Stagnation
from gputui.recovery.alerts.rules import RULES
from tests.recovery.alerts.scenes import GIB, Scene, Stage, gpu, host, run, slow
from tests.tables import table
from tests.texts import mentions


@dataclass(frozen=True)
class Case:
    """``fires`` raises the rule with this sentence, each of ``quiet`` does not."""

    fires: Scene
    sentence: str
    quiet: dict[str, Scene]


LOSS_STUCK = (Stagnation("loss", 1.902, 8000, 1001, 2.0),)
LOSS_MOVES = (Stagnation("loss", 1.902, 8000, 900, 2.0),)
VALIDATION_STUCK = (Stagnation("val/loss", 2.01, 400, None, 10.5), Stagnation("loss", 1.9, 900, 20, None))

CASES: dict[str, Case] = {
    "gpu_lost": Case(
        [(gpu(state="lost"), 1)],
        "GPU 3 is lost: the driver does not answer for it",
        {"a driver that is silent": [(gpu(is_known=False), 600)]},
    ),
    "xid_hardware": Case(
        [(gpu(xids=(79,)), 1)],
        "GPU 3 reported XID 79: the GPU has fallen off the bus (power, cooling or PCIe); a reboot is needed",
        {"an error of the program": [(gpu(xids=(13, 31)), 1)], "what a kill leaves": [(gpu(xids=(43, 45)), 1)]},
    ),
    "xid": Case(
        [(gpu(xids=(45, 31)), 1)],
        "GPU 3 reported XID 31: memory page fault, mostly an error of the program (illegal address)",
        {"only what a kill leaves": [(gpu(xids=(45,)), 1)], "hardware has a rule of its own": [(gpu(xids=(48,)), 1)]},
    ),
    "ecc": Case(
        [(gpu(grown={"ecc_uncorrected": 2}), 1)],
        "GPU 3 counted 2 new uncorrected memory errors",
        {"none new": [(gpu(grown={"ecc_uncorrected": 0, "pcie_width": 7}), 60)], "no counter": [(gpu(grown={}), 60)]},
    ),
    "row_remap": Case(
        [(gpu(slow=slow(row_remap_pending=True)), 1)],
        "GPU 3: a bad memory row waits to be remapped",
        {"nothing pending": [(gpu(), 60)], "not told": [(gpu(slow=slow()), 60)]},
    ),
    "gpu_memory": Case(
        [(gpu(memory_used_bytes=78 * GIB), 302)],
        "GPU 3 memory 98 % used (limit 95 %)",
        {
            "a peak of four minutes": [(gpu(memory_used_bytes=78 * GIB), 240), (gpu(), 5)] * 5,
            "the driver's own share left out": [(gpu(memory_used_bytes=75 * GIB), 900)],
        },
    ),
    "gpu_hot": Case(
        [(gpu(temperature_celsius=86.0), 32)],
        "GPU 3 at 86 °C (limit 85 °C)",
        {
            "warm": [(gpu(temperature_celsius=84.0), 600)],
            "hot for one sample": [(gpu(temperature_celsius=91.0), 2), (gpu(), 60)],
        },
    ),
    "gpu_throttled": Case(
        [(gpu(throttled_percent=42.0, throttle_reasons=("power cap", "hardware thermal")), 12)],
        "GPU 3 was throttled for 42 % of the last minute: hardware thermal",
        {"a flicker": [(gpu(throttled_percent=15.0), 600)], "not told": [(gpu(throttled_percent=None), 600)]},
    ),
    "gpu_underused": Case(
        [(gpu(busy_percent=31.0), 302)],
        "GPU 3 is used 31 % by vit-1, less than 50 %",
        {
            "nobody trains there": [(gpu(busy_percent=0.0, training_run=None), 900)],
            "a validation of four minutes": [(gpu(busy_percent=20.0), 240), (gpu(), 60)] * 4,
        },
    ),
    "gpu_parked": Case(
        [(gpu(utilization_percent=0.0, memory_used_bytes=22 * GIB, holder="alice · python sweep.py"), 1802)],
        "GPU 3 has 22.0 GiB held by alice · python sweep.py and computes nothing",
        {
            "an empty GPU": [(gpu(utilization_percent=0.0, memory_used_bytes=GIB // 2), 4000)],
            "it computes now and then": [
                (gpu(utilization_percent=0.0, memory_used_bytes=22 * GIB), 1500), (gpu(utilization_percent=3.0), 1),
            ] * 3,
        },
    ),
    "power_trend": Case(
        [(gpu(power_watts=400.0), 122)],
        "GPU 3: power fell from 600 W to 400 W under vit-1",
        {
            "the run has ended": [(gpu(power_watts=80.0, training_run=None), 900)],
            "not yet an hour": [(gpu(power_watts=80.0, power_before_watts=None), 900)],
        },
    ),
    "host_memory": Case(
        [(host(memory_used_bytes=250 * GIB), 62)],
        "Host memory 98 % used (limit 92 %)",
        {"a lot, but room": [(host(memory_used_bytes=230 * GIB), 600)]},
    ),
    "host_memory_growth": Case(
        [(host(memory_growth_bytes_per_hour=6.0e9), 122)],
        "The host's memory fills by 6.0 GB/h; full in 30.1 h",
        {"it shrinks": [(host(memory_growth_bytes_per_hour=-9e9), 600)], "slowly": [
            (host(memory_growth_bytes_per_hour=1.5e9), 600)
        ]},
    ),
    "disk": Case(
        [(host(disk_used_bytes=960 * GIB), 62)],
        "State disk 96 % full (limit 95 %)",
        {"94 %": [(host(disk_used_bytes=940 * GIB), 600)], "unknown": [(host(disk_used_bytes=None), 600)]},
    ),
    "shm": Case(
        [(host(shm_used_bytes=93 * GIB), 32)],
        "/dev/shm 93 % full (limit 90 %)",
        {"none there": [(host(shm_used_bytes=0, shm_total_bytes=0), 600)]},
    ),
    "nccl_errors": Case(
        [(run(nccl_errors=1, nccl_text="rank 2 waited in vain for the other ranks"), 1)],
        "vit-1: rank 2 waited in vain for the other ranks",
        {"none": [(run(), 600)]},
    ),
    "no_improvement": Case(
        [(run(stagnation=LOSS_STUCK), 1)],
        "vit-1: loss: no improvement for 1 001 steps (best 1.902 at step 8 000)",
        {"it is slow": [(run(stagnation=LOSS_MOVES), 600)], "it has ended": [
            (run(stagnation=LOSS_STUCK, is_training=False), 600)
        ]},
    ),
    "gradient_norm": Case(
        [(run({"grad_norm": 14.0}), 32)],
        "vit-1: gradient norm 14 (limit 10)",
        {"one step": [(run({"grad_norm": 300.0}), 2), (run(), 60)], "at ten": [(run({"grad_norm": 10.0}), 600)]},
    ),
    "slow_steps": Case(
        [(run({"step_time": 0.75}), 62)],
        "vit-1: step time 750 ms (limit 600 ms); it was about 300 ms before",
        {
            "a large model": [(run({"step_time": 3.1}, median_step_seconds=3.0), 600)],
            "fast steps that became less fast": [(run({"step_time": 0.09}, median_step_seconds=0.02), 600)],
            "the first steps, which compile": [(run({"step_time": 9.0}, median_step_seconds=None), 600)],
        },
    ),
    "data_wait": Case(
        [(run({"data_time": 0.08}), 62)],
        "vit-1: data wait 80 ms a step (limit 50 ms), 27 % of a step",
        {
            "little of a long step": [(run({"data_time": 0.06, "step_time": 3.0}), 600)],
            "most of a short step": [(run({"data_time": 0.02, "step_time": 0.025}), 600)],
        },
    ),
    "cache_misses": Case(
        [(run(cache_hit_percent=55.0), 122)],
        "vit-1: cache hits 55 % (limit 80 %)",
        {"the first epoch fills it": [(run({"epoch": 0.0}, cache_hit_percent=2.0), 600)], "no cache": [(run(), 600)]},
    ),
    "skipped_samples": Case(
        [(run(skipped_percent=7.0, samples_seen=4000.0), 12)],
        "vit-1: 7 % of the samples unreadable (limit 5 %)",
        {"two of the first twenty": [(run(skipped_percent=10.0, samples_seen=20.0), 600)]},
    ),
    "lr_off_schedule": Case(
        [(run({"lr": 0.002}, lr_expected=(0.001, 0.0011)), 32)],
        "vit-1: the learning rate is 2e-3, its schedule says 1.1e-3",
        {
            "no schedule is known": [(run({"lr": 0.5}), 600)],
            "a step before or after": [(run({"lr": 0.00105}, lr_expected=(0.001, 0.0011)), 600)],
        },
    ),
}  # fmt: skip


@table("rule_id", RULES)
def test_it_fires(rule_id: str) -> None:
    case = CASES[rule_id]
    stage = Stage(rule_id)
    assert stage.play(case.fires) == ["raised"]
    subject = {"gpu": "GPU 3", "host": "the host", "run": "vit-1"}[RULES[rule_id].subject]
    assert stage.sentence(subject).replace("\u202f", " ") == case.sentence


@table(("rule_id", "name"), [(rule, name) for rule, case in CASES.items() for name in case.quiet])
def test_a_look_alike_does_not_fire(rule_id: str, name: str) -> None:
    assert Stage(rule_id).play(CASES[rule_id].quiet[name]) == []


@table("rule_id", RULES)
def test_it_clears_when_all_is_well_again(rule_id: str) -> None:
    rule = RULES[rule_id]
    well = {"gpu": gpu(), "host": host(), "run": run(
        stagnation=LOSS_MOVES, cache_hit_percent=97.0, skipped_percent=0.0, lr_expected=(0.001, 0.001)
    )}[rule.subject]  # fmt: skip
    stage = Stage(rule_id)
    assert stage.play([*CASES[rule_id].fires, (well, rule.clear_seconds + 2)]) == ["raised", "cleared"]


@table("rule_id", RULES)
def test_what_is_unknown_neither_raises_nor_clears(rule_id: str) -> None:
    unknown = {
        "gpu": gpu(
            is_known=False, utilization_percent=None, busy_percent=None, memory_used_bytes=None,
            temperature_celsius=None, throttled_percent=None, power_watts=None, slow=None, grown={},
        ),
        "host": host(
            memory_used_bytes=None, memory_growth_bytes_per_hour=None, disk_used_bytes=None, shm_used_bytes=None
        ),
        "run": run(stagnation=(), median_step_seconds=None, values={}, means={}),
    }[RULES[rule_id].subject]  # fmt: skip
    # That nothing was reported is known of a run, whatever its metrics say: it clears after a long time.
    unknown_for = 20.0 if rule_id == "nccl_errors" else 5000.0
    stage = Stage(rule_id)
    assert stage.play([(unknown, unknown_for)]) == []
    assert stage.play(CASES[rule_id].fires) == ["raised"]
    assert stage.play([(unknown, unknown_for)]) == [] and stage.is_raised


def test_the_slowdown_limit_may_lie_lower_than_the_fixed_one() -> None:
    near = gpu(temperature_celsius=83.0, slowdown_celsius=87.0)
    stage = Stage("gpu_hot")
    assert stage.play([(near, 60)]) == ["raised"]
    assert mentions(stage.sentence("GPU 3"), "GPU 3", "83 °C", "82 °C", "87 °C")
    for limit in (None, 0.0):
        unknown_limit = gpu(temperature_celsius=83.0, slowdown_celsius=limit)
        assert Stage("gpu_hot").play([(unknown_limit, 60)]) == []


def test_epochs_are_judged_by_the_validation() -> None:
    stage = Stage("no_improvement")
    assert stage.play([(run(stagnation=VALIDATION_STUCK), 1)]) == ["raised"]
    assert mentions(stage.sentence("vit-1"), "val/loss", "10.5 epochs", "2.010", "step 400")


@table("norm", [math.nan, math.inf])
def test_gradients_that_are_no_number_count_as_large(norm: float) -> None:
    assert Stage("gradient_norm").play([(run({"grad_norm": norm}), 40)]) == ["raised"]
