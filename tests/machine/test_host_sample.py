"""The host through psutil: against the real machine, and against counters made up."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from gputui.machine.host_sample import HostSampler
from gputui.machine.procfs import available_bytes
from tests.tables import table

Disk = namedtuple("Disk", ["read_bytes", "write_bytes"])
Network = namedtuple("Network", ["bytes_recv", "bytes_sent"])
Usage = namedtuple("Usage", ["used", "free", "total"])
Times = namedtuple("Times", ["user", "system", "idle", "iowait", "guest", "guest_nice"])


class Counters:
    """psutil's counters, to be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk: Disk | None = Disk(0, 0)
        self.network = {"lo": Network(0, 0), "eth0": Network(0, 0)}
        self.times = Times(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: self.disk)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: self.network)
        monkeypatch.setattr(psutil, "cpu_times", lambda: self.times)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    return Counters(monkeypatch)


def test_the_real_machine(tmp_path: Path) -> None:
    sample = HostSampler(tmp_path).sample(at=5.0, now=1.0)
    assert sample.at == 5.0
    assert sample.cpu_count == os.cpu_count()
    assert sample.memory_used_bytes is not None
    assert sample.memory_total_bytes is not None
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert sample.disk_used_bytes is not None
    assert sample.disk_total_bytes is not None
    assert 0 < sample.disk_used_bytes <= sample.disk_total_bytes
    assert sample.load_1m is not None


def test_rates_are_unknown_on_the_first_tick(counters: Counters, tmp_path: Path) -> None:
    sample = HostSampler(tmp_path).sample(1.0, 1.0)
    assert sample.cpu_percent is None
    assert sample.disk_read_bytes_per_second is None
    assert sample.network_sent_bytes_per_second is None


def test_rates_are_per_second_of_real_time(counters: Counters, tmp_path: Path) -> None:
    host = HostSampler(tmp_path)
    host.sample(1.0, 1.0)
    counters.disk = Disk(4000, 1000)
    counters.network = {"lo": Network(9999, 9999), "eth0": Network(200, 100), "ib0": Network(1000, 0)}
    sample = host.sample(3.0, 3.0)
    assert (sample.disk_read_bytes_per_second, sample.disk_write_bytes_per_second) == (2000.0, 500.0)
    assert sample.network_received_bytes_per_second == 600.0, "all interfaces but the loopback"
    assert sample.network_sent_bytes_per_second == 50.0
    idle = host.sample(4.0, 4.0)
    assert (idle.disk_read_bytes_per_second, idle.network_sent_bytes_per_second) == (0.0, 0.0)


def test_a_counter_that_went_back_gives_no_rate(counters: Counters, tmp_path: Path) -> None:
    counters.disk = Disk(4000, 0)
    host = HostSampler(tmp_path)
    host.sample(1.0, 1.0)
    counters.disk = Disk(10, 500)
    sample = host.sample(2.0, 2.0)
    assert (sample.disk_read_bytes_per_second, sample.disk_write_bytes_per_second) == (None, 500.0)


def test_waiting_for_a_disk_is_not_work(counters: Counters, tmp_path: Path) -> None:
    host = HostSampler(tmp_path)
    counters.times = Times(100.0, 0.0, 100.0, 0.0, 20.0, 0.0)
    host.sample(1.0, 1.0)
    counters.times = Times(101.0, 0.0, 102.0, 1.0, 20.0, 0.0)
    assert host.sample(2.0, 2.0).cpu_percent == pytest.approx(25.0)
    assert host.sample(3.0, 3.0).cpu_percent is None, "no time has passed"


def test_space_is_read_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostSampler(tmp_path)
    first = host.sample(1.0, 1.0).disk_total_bytes
    monkeypatch.setattr(psutil, "disk_usage", lambda path: Usage(1, 2, 9))
    assert host.sample(2.0, 2.0).disk_total_bytes == first
    assert host.sample(6.0, 6.0).disk_total_bytes == 3, "what is reserved is not to be had"


def test_available_memory_of_the_real_machine() -> None:
    assert 0 < (available_bytes() or 0) <= psutil.virtual_memory().total


@table(("text", "expected"), [
    ("MemTotal: 9 kB\nMemAvailable:  3 kB\n", 3072), ("MemTotal: 9 kB\n", None), ("MemAvailable:\n", None),
    ("MemAvailable: much\n", None), (None, None),
])  # fmt: skip
def test_available_memory_is_unknown_where_it_cannot_be_read(
    tmp_path: Path, text: str | None, expected: int | None
) -> None:
    file = tmp_path / "meminfo"
    if text is not None:
        file.write_text(text)
    assert available_bytes(file) == expected
