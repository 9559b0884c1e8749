"""Simulated GPUs: times are passed in, so a minute takes no time."""

from __future__ import annotations

import itertools
import os
import statistics
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from gputui.machine.gpu_model import FastTick, Occupant
from gputui.machine.simulated import SimulatedSource, TrainingLoad
from gputui.store.series import GpuSample

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


def run(source: SimulatedSource, end: float, since: float = 0.0) -> list[FastTick]:
    """A tick each second from ``since`` to ``until`` seconds after the epoch, both included."""
    return [source.fast(EPOCH + second) for second in range(int(since), int(end) + 1)]


def last(source: SimulatedSource, end: float, index: int = 0) -> GpuSample:
    return run(source, end)[-1].gpus[index]


def test_a_simulated_gpu_has_every_value_but_those_of_absent_parts() -> None:
    source = SimulatedSource(gpu_count=1, epoch=EPOCH)
    readings = (source.inventory(EPOCH).gpus[0], run(source, 2)[-1].gpus[0], source.slow(EPOCH + 3).gpus[0])
    unknown = {name for reading in readings for name, value in asdict(reading).items() if value is None}
    assert unknown == {"detail", "fan_percent", "pcie_replays", "encoder_percent", "decoder_percent"}


def test_load_follows_the_occupants() -> None:
    source = SimulatedSource(gpu_count=2, epoch=EPOCH)
    idle = source.fast(EPOCH - 1).gpus[0]
    source.occupy([ours(source)])
    busy, idle_gpu = run(source, 60)[-1].gpus
    assert busy.utilization_percent is not None
    assert busy.utilization_percent > 85
    assert busy.memory_used_bytes == 20 * GIB
    assert busy.power_watts is not None
    assert busy.power_watts > 400
    assert busy.temperature_celsius is not None
    assert idle.temperature_celsius is not None
    assert busy.temperature_celsius > idle.temperature_celsius + 20
    assert (idle_gpu.utilization_percent, idle_gpu.memory_used_bytes) == (0.0, 0)
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


def test_energy_is_the_sum_of_power() -> None:
    source = SimulatedSource(gpu_count=1, epoch=EPOCH)
    ticks = run(source, 10)
    power = [tick.gpus[0].power_watts or 0 for tick in ticks[1:]]
    energy = source.slow(EPOCH + 10).gpus[0].energy_joules
    assert energy == pytest.approx(sum(power), rel=0.01)


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


def test_foreign_processes_cannot_be_signalled(tmp_path: Path) -> None:
    source = source_with(tmp_path, "{gpus: 2, foreign: [{gpu: 0, memory: 4GiB, user: bob}]}")
    assert last(source, 4).memory_used_bytes == 4 * GIB
    assert last(source, 5, 1).memory_used_bytes == 0
    (process,) = source.processes(EPOCH + 5).processes[uuid_of(source)] or ()
    assert (process.user, process.memory_bytes, process.start_ticks) == ("bob", 4 * GIB, None)


def test_trainings_have_waves_pauses_and_steps_of_memory(tmp_path: Path) -> None:
    text = "{gpus: 3, load: training, faults: [{kind: hot, gpu: 2, celsius: 86}]}"
    source = source_with(tmp_path, text)
    ranks = [replace(ours(source, index), since=EPOCH) for index in range(3)]
    source.occupy(ranks)
    ticks = run(source, 600)
    first, second, hot = zip(*(tick.gpus for tick in ticks), strict=True)
    memory = {sample.memory_used_bytes for sample in first}
    assert memory == {int(share * 20 * GIB) for share in (0.02, 0.4, 0.86, 1.0)}
    validates = TrainingLoad(zlib.crc32(b"r1", 1), 0).is_validating
    pauses = [validates(tick.at) for tick in ticks]
    assert 5 <= sum(begins > before for before, begins in itertools.pairwise(pauses)) <= 10
    for samples in (first, second):
        loads = [sample.utilization_percent or 0.0 for sample in samples]
        paused = [load for load, is_pause in zip(loads[60:], pauses[60:], strict=True) if is_pause]
        computing = [load for load, is_pause in zip(loads[60:], pauses[60:], strict=True) if not is_pause]
        assert min(paused) > 50
        assert max(paused) < 70
        assert statistics.mean(computing) > 75
        assert max(computing) > 90
        powers = [sample.power_watts or 0.0 for sample in samples[60:]]
        assert max(abs(later - earlier) for earlier, later in itertools.pairwise(powers)) < 80
    assert [sample.utilization_percent for sample in first] != [sample.utilization_percent for sample in second]
    assert len({sample.temperature_celsius for sample in hot[60:]}) > 1
    assert max(TrainingLoad(run, gpu).percent(at) for run in range(40) for gpu in range(4) for at in range(500)) == 100


def test_a_source_that_begins_later_goes_on_where_the_other_ended(tmp_path: Path) -> None:
    text = "{gpus: 1, load: training}"
    former = source_with(tmp_path, text)
    later = source_with(tmp_path, text)
    occupant = replace(ours(former), since=EPOCH)
    former.occupy([occupant])
    run(former, 600)
    later.occupy([occupant])
    [expected] = former.fast(EPOCH + 601).gpus
    [sample] = later.fast(EPOCH + 601).gpus
    assert (sample.utilization_percent, sample.memory_used_bytes) == (
        expected.utilization_percent, expected.memory_used_bytes,
    )  # fmt: skip
    assert sample.power_watts == pytest.approx(expected.power_watts, abs=40)
    assert sample.temperature_celsius == pytest.approx(expected.temperature_celsius, abs=3)
