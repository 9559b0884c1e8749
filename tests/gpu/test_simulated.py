"""Simulated GPUs: times are passed in, so a minute takes no time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.gpu.model import FastTick, GpuSample, Occupant
from gputui.gpu.simulated import SimulatedSource

EPOCH = 1_000_000.0
GIB = 2**30


def source_with(tmp_path: Path, text: str, sleep: Callable[[float], None] = lambda seconds: None) -> SimulatedSource:
    """A source whose scenario was written when the simulation began."""
    write(tmp_path, text, EPOCH)
    return SimulatedSource(tmp_path / "scenario.yaml", epoch=EPOCH, sleep=sleep)


def write(tmp_path: Path, text: str, at: float) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    os.utime(path, (at, at))


def uuid_of(source: SimulatedSource, index: int = 0) -> str:
    return source.inventory(EPOCH).gpus[index].uuid


def ours(source: SimulatedSource, index: int = 0, run_id: str = "r1", memory: int | None = 20 * GIB) -> Occupant:
    return Occupant(uuid_of(source, index), os.getpid(), run_id, memory_bytes=memory)


def run(source: SimulatedSource, until: float, since: float = 0.0) -> list[FastTick]:
    """A tick each second from ``since`` to ``until`` seconds after the epoch, both included."""
    return [source.fast(EPOCH + second) for second in range(int(since), int(until) + 1)]


def last(source: SimulatedSource, until: float, index: int = 0) -> GpuSample:
    return run(source, until)[-1].gpus[index]


def test_eight_gpus_of_80_gib_by_default() -> None:
    inventory = SimulatedSource(epoch=EPOCH).inventory(EPOCH)
    assert inventory.source == "simulated"
    assert len(inventory.gpus) == len({gpu.uuid for gpu in inventory.gpus}) == 8
    assert [gpu.index for gpu in inventory.gpus] == list(range(8))
    assert {gpu.memory_total_bytes for gpu in inventory.gpus} == {80 * GIB}
    assert SimulatedSource(gpu_count=2, epoch=EPOCH).inventory(EPOCH).gpus == inventory.gpus[:2]


def test_no_gpus_is_said() -> None:
    inventory = SimulatedSource(gpu_count=0, epoch=EPOCH).inventory(EPOCH)
    assert inventory.gpus == ()
    assert inventory.problem is not None


def test_a_free_gpu_is_idle_and_its_zeros_are_known() -> None:
    sample = last(SimulatedSource(gpu_count=1, epoch=EPOCH), 10)
    assert (sample.utilization_percent, sample.memory_used_bytes) == (0.0, 0)
    assert sample.power_watts is not None
    assert sample.power_watts < 100
    assert sample.throttle_reasons == ()


def test_load_follows_the_occupants() -> None:
    source = SimulatedSource(gpu_count=2, epoch=EPOCH)
    idle = source.fast(EPOCH - 1).gpus[0]
    source.occupy([ours(source)])
    busy, other = run(source, 60)[-1].gpus
    assert busy.utilization_percent is not None
    assert busy.utilization_percent > 85
    assert busy.memory_used_bytes == 20 * GIB
    assert busy.power_watts is not None
    assert busy.power_watts > 400
    assert busy.temperature_celsius is not None
    assert idle.temperature_celsius is not None
    assert busy.temperature_celsius > idle.temperature_celsius + 20
    assert (other.utilization_percent, other.memory_used_bytes) == (0.0, 0)
    (process,) = source.processes(EPOCH + 60).processes[busy.uuid] or ()
    assert process.pid == os.getpid()
    assert process.memory_bytes == 20 * GIB
    assert process.command is not None
    assert process.start_ticks is not None
    source.occupy([])
    after = source.fast(EPOCH + 61).gpus[0]
    assert (after.utilization_percent, after.memory_used_bytes) == (0.0, 0)
    assert after.temperature_celsius is not None
    assert after.temperature_celsius > idle.temperature_celsius + 20, "heat stays for a while"


def test_an_occupant_that_is_told_again_does_not_warm_up_again() -> None:
    source = SimulatedSource(gpu_count=1, epoch=EPOCH)
    source.occupy([ours(source)])
    run(source, 10)
    source.occupy([ours(source)])
    assert source.fast(EPOCH + 11).gpus[0].memory_used_bytes == 20 * GIB


def test_memory_without_a_figure_depends_on_the_run_only() -> None:
    def held(run_id: str) -> int | None:
        source = SimulatedSource(gpu_count=1, epoch=EPOCH)
        source.occupy([ours(source, run_id=run_id, memory=None)])
        return last(source, 10).memory_used_bytes

    assert held("a") == held("a")
    assert held("a") != held("b")


def test_the_same_seed_and_times_give_the_same_samples(tmp_path: Path) -> None:
    def ticks(seed: int) -> list[FastTick]:
        source = source_with(tmp_path, f"seed: {seed}")
        source.occupy([Occupant(source.inventory(EPOCH).gpus[0].uuid, os.getpid(), "r")])
        return run(source, 30)

    assert ticks(3) == ticks(3)
    loads = [[tick.gpus[0].utilization_percent for tick in ticks(seed)] for seed in (3, 4)]
    assert loads[0] != loads[1]
    assert len(set(loads[0])) > 3, "the load moves"


def test_energy_is_the_sum_of_power() -> None:
    source = SimulatedSource(gpu_count=1, epoch=EPOCH)
    ticks = run(source, 10)
    power = [tick.gpus[0].power_watts or 0 for tick in ticks[1:]]
    energy = source.slow(EPOCH + 10).gpus[0].energy_joules
    assert energy == pytest.approx(sum(power), rel=0.01)


def test_a_board_without_a_fan_has_no_fan_speed() -> None:
    assert SimulatedSource(gpu_count=1, epoch=EPOCH).slow(EPOCH).gpus[0].fan_percent is None


def test_lost_and_returned(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 2, faults: [{kind: lost, gpu: 1, at: 5, for: 10}]}")
    uuid = uuid_of(source, 1)
    assert last(source, 4, 1).state == "ok"
    assert source.events(EPOCH + 4) == []
    lost = source.fast(EPOCH + 5).gpus[1]
    assert (lost.state, lost.utilization_percent, lost.memory_used_bytes) == ("lost", None, None)
    assert [(event.event, event.uuid) for event in source.events(EPOCH + 5)] == [("lost", uuid)]
    assert source.events(EPOCH + 6) == []
    assert [gpu.uuid for gpu in source.slow(EPOCH + 6).gpus] == [uuid_of(source, 0)]
    assert source.processes(EPOCH + 6).processes[uuid] is None
    assert source.fast(EPOCH + 15).gpus[1].state == "ok"
    assert [event.event for event in source.events(EPOCH + 15)] == ["returned"]


def test_a_hang_blocks_for_what_is_left_of_it(tmp_path: Path) -> None:
    slept: list[float] = []
    source = source_with(tmp_path, "{gpus: 1, faults: [{kind: hang, at: 5, for: 40}]}", slept.append)
    run(source, 4)
    assert slept == []
    source.fast(EPOCH + 6)
    assert slept == [39.0]
    source.fast(EPOCH + 45)
    assert slept == [39.0]


def test_a_hang_without_end_never_returns(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        source_with(tmp_path, "{gpus: 1, faults: [{kind: hang}]}", sleep).fast(EPOCH)


def test_stale_repeats_old_values_with_their_old_time(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 1, faults: [{kind: stale, at: 5, for: 10}]}")
    before = run(source, 4)[-1]
    assert [source.fast(EPOCH + second) for second in (5, 9, 14)] == [before, before, before]
    assert source.fast(EPOCH + 15).at == EPOCH + 15


def test_an_xid_comes_once_for_each_gpu(tmp_path: Path) -> None:
    source = source_with(
        tmp_path, "{gpus: 2, faults: [{kind: xid, code: 79, gpu: 1, at: 3}, {kind: xid, code: 31, at: 4}]}"
    )
    assert source.events(EPOCH + 2) == []
    (first,) = source.events(EPOCH + 3)
    assert (first.event, first.code, first.uuid) == ("xid", 79, uuid_of(source, 1))
    assert first.text is not None
    assert "fallen off the bus" in first.text
    assert [event.code for event in source.events(EPOCH + 4)] == [31, 31]
    assert source.events(EPOCH + 5) == []


def test_hot_heats_up_and_throttles(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 1, faults: [{kind: hot, celsius: 95, at: 2}]}")
    source.occupy([ours(source)])
    assert last(source, 1).throttle_reasons == ()
    hot = [source.fast(EPOCH + second).gpus[0] for second in range(2, 22)][-1]
    assert hot.temperature_celsius == pytest.approx(95, abs=1)
    assert hot.throttle_reasons == ("hardware thermal",)
    assert hot.sm_clock_mhz is not None
    assert hot.sm_clock_mhz < 1500


def test_throttle_gives_the_reason_asked_for(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 1, faults: [{kind: throttle, reason: power cap}]}")
    assert last(source, 1).throttle_reasons == ("power cap",)


def test_memory_leaks_until_the_gpu_is_full(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 1, faults: [{kind: memory_leak, rate: 1GiB, at: 10}]}")
    source.occupy([ours(source)])
    assert last(source, 10).memory_used_bytes == 20 * GIB
    assert source.fast(EPOCH + 15).gpus[0].memory_used_bytes == 25 * GIB
    full = source.fast(EPOCH + 1000).gpus[0]
    assert full.memory_used_bytes is not None
    assert full.memory_reserved_bytes is not None
    assert full.memory_used_bytes + full.memory_reserved_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("field", "slow"), [("power_watts", False), ("throttle_reasons", False), ("energy_joules", True)]
)
def test_no_value_makes_it_unknown(tmp_path: Path, field: str, slow: bool) -> None:
    source = source_with(tmp_path, f"{{gpus: 2, faults: [{{kind: no_value, gpu: 1, field: {field}}}]}}")
    fast = run(source, 1)[-1]
    found = source.slow(EPOCH + 1).gpus if slow else fast.gpus
    assert getattr(found[0], field) is not None
    assert getattr(found[1], field) is None


def test_foreign_and_busy_processes_cannot_be_signalled(tmp_path: Path) -> None:
    text = (
        "{gpus: 2, foreign: [{gpu: 0, memory: 4GiB, user: bob}], faults: [{kind: busy, gpu: 0, at: 5, memory: 8GiB}]}"
    )
    source = source_with(tmp_path, text)
    uuid = uuid_of(source)
    assert last(source, 4).memory_used_bytes == 4 * GIB
    listed = source.processes(EPOCH + 5).processes[uuid] or ()
    assert [(process.user, process.memory_bytes) for process in listed] == [("bob", 4 * GIB), ("somebody", 8 * GIB)]
    assert all(process.start_ticks is None for process in listed)
    assert source.fast(EPOCH + 6).gpus[0].memory_used_bytes == 12 * GIB


def test_a_rewritten_scenario_starts_anew(tmp_path: Path) -> None:
    source = source_with(tmp_path, "gpus: 2")
    assert last(source, 9).state == "ok"
    write(tmp_path, "{gpus: 2, faults: [{kind: lost, gpu: 0, at: 3}]}", EPOCH + 10)
    assert source.fast(EPOCH + 12).gpus[0].state == "ok"
    assert source.fast(EPOCH + 13).gpus[0].state == "lost"
    (tmp_path / "scenario.yaml").unlink()
    assert source.fast(EPOCH + 14).gpus[0].state == "ok"


def test_a_broken_rewrite_is_reported_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = source_with(tmp_path, "{gpus: 2, faults: [{kind: lost, gpu: 0}]}")
    write(tmp_path, "faults: [{kind: explode}]", EPOCH + 5)
    assert last(source, 6).state == "lost"
    assert "scenario not taken over" in capsys.readouterr().err
    assert source.fast(EPOCH + 7).gpus[0].state == "lost"
    assert capsys.readouterr().err == "", "once is enough"


def test_a_restarted_sampler_goes_on_in_the_same_scenario(tmp_path: Path) -> None:
    """Its hang must not come again in every successor that is started after it."""
    source_with(tmp_path, "{gpus: 1, faults: [{kind: hang, at: 5, for: 10}]}")
    slept: list[float] = []
    successor = SimulatedSource(tmp_path / "scenario.yaml", epoch=EPOCH, sleep=slept.append)
    successor.fast(EPOCH + 80)
    assert slept == []


def test_an_old_scenario_begins_when_the_simulation_does(tmp_path: Path) -> None:
    write(tmp_path, "{gpus: 1, faults: [{kind: lost, at: 5, for: 5}]}", EPOCH - 86_400)
    source = SimulatedSource(tmp_path / "scenario.yaml", epoch=EPOCH)
    assert [source.fast(EPOCH + second).gpus[0].state for second in (4, 5, 10)] == ["ok", "lost", "ok"]
