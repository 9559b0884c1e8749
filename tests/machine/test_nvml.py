"""The driver's traps, played by a fake libnvidia-ml behind the real nvidia-ml-py."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator

import psutil
import pytest
from msgspec.structs import asdict

from benchmarks.fakenvml.build import FakeNvml
from tests.machine.nvml_remote import Remote
from tests.tables import table

Begin = Callable[..., Remote]
GIB = 2**30


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The PID of a process that is really there."""
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child.pid
        child.kill()


def test_facts_and_a_full_sample(remote: Begin, sleeper: int) -> None:
    source = remote("gpus 2", f"process 1 {sleeper} 4096 C 40")
    inventory = source.inventory()
    assert (inventory.source, inventory.driver_version, inventory.cuda_version) == ("nvml", "580.95.05", "13.0")
    assert inventory.problem is None
    facts = inventory.gpus[1]
    assert facts.index == 1
    assert facts.uuid.startswith("GPU-")
    assert facts.name == "NVIDIA Fake 80GB"
    assert facts.pci_bus_id == "00000000:11:00.0"
    assert facts.memory_total_bytes == 80 * GIB
    assert (facts.power_limit_default_watts, facts.power_limit_max_watts) == (700.0, 700.0)
    assert (facts.temperature_slowdown_celsius, facts.temperature_shutdown_celsius) == (87.0, 92.0)
    assert (facts.pcie_generation_max, facts.pcie_width_max, facts.compute_capability) == (5, 16, "9.0")
    assert (facts.persistence_mode, facts.mig_mode, facts.power_reading) == (True, False, "instant")
    sample = source.fast().gpus[1]
    assert (sample.uuid, sample.state, sample.detail) == (facts.uuid, "ok", None)
    assert sample.memory_used_bytes == 4 * GIB, "what the driver reserves is not counted as used"
    assert sample.memory_reserved_bytes == 600 * 2**20
    assert sample.utilization_percent is not None
    assert sample.power_watts is not None
    assert 0 < sample.utilization_percent <= 100
    assert 80 < sample.power_watts < 700
    assert sample.power_limit_watts == 700.0
    assert (sample.memory_clock_mhz, sample.performance_state) == (2619, 0)
    assert source.recheck() is None


def test_the_driver_gives_every_value_that_is_sampled(remote: Begin) -> None:
    source = remote("gpus 1")
    readings = [source.inventory().gpus[0]]
    source.slow()
    source.tell("link_step")
    readings += [source.fast().gpus[0], source.slow().gpus[0]]
    unknown = {name for reading in readings for name, value in asdict(reading).items() if value is None}
    # The detail says why a GPU is not read.
    assert unknown == {"detail"}


def test_the_slow_tier_and_rates_by_difference(remote: Begin) -> None:
    source = remote("gpus 1")
    source.inventory()
    first = source.slow().gpus[0]
    assert first.nvlink_received_bytes_per_second is None, "a first reading has no difference"
    assert first.pcie_received_bytes_per_second is None, "the link has not been read yet"
    source.tell("link_step")
    second = source.slow().gpus[0]
    assert second.nvlink_received_bytes_per_second is not None
    assert second.nvlink_received_bytes_per_second == pytest.approx(1e6 * 1024, rel=0.2)
    assert (second.pcie_generation, second.pcie_width) == (5, 16)
    assert second.pcie_received_bytes_per_second is not None
    assert (second.encoder_percent, second.decoder_percent) == (5.0, 7.0)
    assert second.pcie_sent_bytes_per_second is not None
    assert second.pcie_received_bytes_per_second == pytest.approx(3 * second.pcie_sent_bytes_per_second)
    assert (second.ecc_corrected, second.ecc_uncorrected) == (0, 0)
    assert (second.row_remap_pending, second.row_remap_failed) == (False, False)
    assert first.energy_joules is not None
    assert second.energy_joules is not None
    assert second.energy_joules > first.energy_joules


def test_an_integrated_gpu_has_the_memory_of_the_host(remote: Begin) -> None:
    # The driver does not report the memory of the second GPU.
    source = remote("gpus 2", "unsupported nvmlDeviceGetMemoryInfo", "unsupported nvmlDeviceGetMemoryInfo_v2",
                    "unsupported nvmlDeviceGetBAR1MemoryInfo 0")  # fmt: skip
    total = psutil.virtual_memory().total
    facts = source.inventory().gpus
    samples = source.fast().gpus
    assert [(fact.memory_is_unified, fact.memory_total_bytes) for fact in facts] == [(True, total), (False, None)]
    assert [sample.memory_total_bytes for sample in samples] == [total, None]
    assert samples[0].memory_used_bytes
    assert samples[1].memory_used_bytes is None


@table(("function", "fields"), [
    ("nvmlDeviceGetUtilizationRates", ("utilization_percent", "memory_utilization_percent")),
    ("nvmlDeviceGetClockInfo", ("sm_clock_mhz", "memory_clock_mhz")),
    ("nvmlDeviceGetEnforcedPowerLimit", ("power_limit_watts",)),
])  # fmt: skip
def test_what_a_gpu_lacks_is_unknown_and_asked_once(
    remote: Begin, fake_nvml: FakeNvml, function: str, fields: tuple[str, ...]
) -> None:
    source = remote("gpus 2", f"unsupported {function} 1")
    source.inventory()
    for _ in range(3):
        having, lacking = source.fast().gpus
        assert lacking.state == "ok"
        for field in fields:
            assert getattr(lacking, field) is None
            assert getattr(having, field) is not None
    before = fake_nvml.calls(source.pid)[function]
    source.fast()
    source.slow()
    source.tell("link_step")
    source.tell("link_step")
    # The slow tier reads the memory clock; the SM clock is not read at each tick.
    assert fake_nvml.calls(source.pid)[function] - before == 1, "only the GPU that answers is asked again"


def test_clocks_are_read_at_each_second_tick(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 2")
    source.inventory()
    function = "nvmlDeviceGetCurrentClocksEventReasons"
    read = []
    for _ in range(6):
        before = fake_nvml.calls(source.pid)[function]
        sample = source.fast().gpus[0]
        assert sample.sm_clock_mhz is not None
        assert sample.throttle_reasons is not None
        read.append(fake_nvml.calls(source.pid)[function] - before)
    assert read == [2, 0, 2, 0, 2, 0]


def test_a_gpu_that_answers_nothing_is_in_error(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 2")
    source.inventory()
    queries = (
        "UtilizationRates",
        "MemoryInfo",
        "MemoryInfo_v2",
        "Temperature",
        "FieldValues",
        "PowerUsage",
        "ClockInfo",
    )
    names = [*queries, "CurrentClocksEventReasons", "CurrentClocksThrottleReasons"]
    fake_nvml.configure(["gpus 2", *(f"fails nvmlDeviceGet{name} 999 1" for name in names)])
    healthy, broken = source.fast().gpus
    assert healthy.state == "ok"
    assert broken.state == "error"
    assert broken.detail is not None
    assert broken.utilization_percent is None


def test_processes_have_user_command_and_share(remote: Begin, sleeper: int) -> None:
    source = remote("gpus 2", f"process 0 {sleeper} 4096 C 37", "process 0 4190001 100 G 0")
    uuid, idle_uuid = (gpu.uuid for gpu in source.inventory().gpus)
    listed = source.processes()
    ours, unseen = listed.processes[uuid] or ()
    assert (ours.pid, ours.kind, ours.memory_bytes, ours.sm_percent) == (sleeper, "C", 4 * GIB, 37)
    assert (ours.user, ours.command) == (pwd.getpwuid(os.getuid()).pw_name, "sleep 60")
    assert ours.start_ticks is not None
    assert (unseen.pid, unseen.kind, unseen.sm_percent) == (4190001, "G", 0)
    assert unseen.user is unseen.start_ticks is None
    assert listed.processes[idle_uuid] == ()


def test_a_lost_gpu_keeps_its_card_and_is_left_alone(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 2")
    gone = source.inventory().gpus[1].uuid
    fake_nvml.configure(["gpus 2", "lost 1"])
    healthy, lost = source.fast().gpus
    assert healthy.state == "ok"
    assert (lost.uuid, lost.state, lost.memory_used_bytes) == (gone, "lost", None)
    assert lost.detail is not None
    assert [(event.event, event.uuid) for event in source.events()] == [("lost", gone)]
    calls = fake_nvml.calls(source.pid)["nvmlDeviceGetTemperature"]
    source.fast()
    assert fake_nvml.calls(source.pid)["nvmlDeviceGetTemperature"] == calls + 1
    assert source.events() == []
    assert source.processes().processes[gone] is None
    assert [gpu.uuid for gpu in source.slow().gpus] == [healthy.uuid]
    assert source.recheck() == 10.0


def test_a_gpu_that_was_lost_before_the_start_has_a_row_and_an_event(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 3", "lost 1")
    inventory = source.inventory()
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2]
    assert inventory.problem is not None
    missing = inventory.gpus[1].uuid
    assert [sample.state for sample in source.fast().gpus] == ["ok", "lost", "ok"]
    assert [(event.event, event.uuid) for event in source.events()] == [("lost", missing)]
    source.inventory()
    assert source.events() == [], "it is told once"
    fake_nvml.configure(["gpus 3"])
    inventory = source.inventory()
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2]
    assert inventory.problem is None
    assert missing not in {gpu.uuid for gpu in inventory.gpus}


def test_a_name_that_is_not_utf8_costs_no_gpu(remote: Begin) -> None:
    first, second = remote("gpus 2", "garbled_name 0").inventory().gpus
    assert first.name.endswith("NVIDIA")
    assert second.name == "NVIDIA Fake 80GB"


def test_xids_come_as_events_and_only_new_ones(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 2", "xid 1 13 1")
    uuid = source.inventory().gpus[1].uuid
    assert source.events() == [], "what happened before is not told"
    fake_nvml.configure(["gpus 2", "xid 1 31 2"])
    (event,) = source.events()
    assert (event.event, event.uuid, event.code) == ("xid", uuid, 31)
    assert event.text is not None
    assert "page fault" in event.text
    assert source.events() == []
    assert source.fast().gpus[1].state == "ok"


@pytest.mark.parametrize(
    ("code", "state", "recheck"), [(79, "lost", 10.0), (119, "error", 300.0), (120, "error", 300.0)]
)
def test_after_some_xids_the_gpu_is_not_asked_any_more(
    remote: Begin, fake_nvml: FakeNvml, code: int, state: str, recheck: float
) -> None:
    source = remote("gpus 2")
    source.inventory()
    fake_nvml.configure(["gpus 2", f"xid 1 {code} 1"])
    assert code in [event.code for event in source.events()]
    calls = fake_nvml.calls(source.pid).get("nvmlDeviceGetTemperature", 0)
    sample = source.fast().gpus[1]
    assert sample.state == state
    assert sample.detail is not None
    assert f"XID {code}" in sample.detail
    assert fake_nvml.calls(source.pid)["nvmlDeviceGetTemperature"] == calls + 1, "only the other GPU was asked"
    assert source.recheck() == recheck


def test_the_driver_is_unloaded_and_loaded_again(remote: Begin, fake_nvml: FakeNvml) -> None:
    source = remote("gpus 2")
    before = source.inventory().gpus
    fake_nvml.configure(["gpus 2", "fails nvmlDeviceGetUtilizationRates 9", "init_error 9"])
    samples = source.fast().gpus
    assert [sample.state for sample in samples] == ["lost", "lost"]
    assert samples[0].detail is not None
    assert "unloaded" in samples[0].detail
    assert [event.event for event in source.events()] == ["lost", "lost"]
    gone = source.inventory()
    assert gone.gpus == before, "they stay known"
    assert gone.problem is not None
    assert "modprobe" in gone.problem
    fake_nvml.configure(["gpus 2"])
    assert source.inventory().problem is None
    assert [sample.state for sample in source.fast().gpus] == ["ok", "ok"]
    assert [event.event for event in source.events()] == ["returned", "returned"]
