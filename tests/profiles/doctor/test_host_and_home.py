"""What is said of the host, its limits, and a home's disk, database and agent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from msgspec.structs import replace

from gputui.machine.systemd import LogoutEnd
from gputui.profiles.doctor import home_judgements as homes
from gputui.profiles.doctor import host_judgements as hosts
from gputui.profiles.doctor.home_facts import AgentReading, HomeReading, check_database, measure_write
from gputui.profiles.doctor.host_facts import HostReading
from gputui.store.database import open_writer
from gputui.version import VERSION
from tests.texts import mentions

GIB = 2**30
HOST = HostReading(
    64 * GIB, 128 * GIB, 0, 8 * GIB, 32 * GIB, 64 * GIB, 65536, 65536, True, None, True, 0, 0, nvidia_hardware=True
)
AGENT = AgentReading(7, VERSION, 1.0, 0.4, "ok")
HOME = HomeReading("/s", "ext4", 500 * GIB, 1000 * GIB, 1e9, None, "ok", 2**20, 12, AGENT)


def test_a_fit_host_and_home_pass_everything() -> None:
    results = [*hosts.judge_host(HOST), *homes.judge_home(HOME)]
    assert {result.status for result in results} == {"pass"} and len(results) == 16
    assert len({result.name for result in results}) == 16


def test_an_unfit_host() -> None:
    for judge, reading, status in [
        (hosts.judge_memory, replace(HOST, memory_available_bytes=3 * GIB), "warn"),
        (hosts.judge_memory, replace(HOST, memory_total_bytes=None), "skip"),
        (hosts.judge_swap, replace(HOST, swap_used_bytes=5 * GIB), "warn"),
        (hosts.judge_swap, replace(HOST, swap_total_bytes=0), "pass"),
        (hosts.judge_shm, replace(HOST, shm_free_bytes=0, shm_total_bytes=64 * 2**20), "fail"),
        (hosts.judge_shm, replace(HOST, shm_free_bytes=2**20), "warn"),
        (hosts.judge_shm, replace(HOST, shm_total_bytes=None), "skip"),
        (hosts.judge_files, replace(HOST, files_soft=1024), "warn"),
        (hosts.judge_files, replace(HOST, files_soft=256), "fail"),
        (hosts.judge_files, replace(HOST, files_soft=None), "skip"),
        (hosts.judge_clock, replace(HOST, clock_synchronised=False), "warn"),
        (hosts.judge_clock, replace(HOST, clock_synchronised=None), "skip"),
        (hosts.judge_logout, replace(HOST, logout=LogoutEnd("a logout ends it", "run loginctl")), "warn"),
        (hosts.judge_file_size, replace(HOST, file_size_bytes=GIB), "warn"),
        (hosts.judge_pidfds, replace(HOST, has_pidfds=False), "warn"),
        (hosts.judge_linger, replace(HOST, lingers=False), "warn"),
        (hosts.judge_linger, replace(HOST, lingers=None), "skip"),
        (hosts.judge_oom, replace(HOST, oom_kills_boot=2), "warn"),
        (hosts.judge_oom, replace(HOST, oom_kills_boot=None, oom_kills_cgroup=None), "skip"),
    ]:
        result = judge(reading)
        assert result.status == status and bool(result.remedy) == (status in ("warn", "fail")), (judge, reading, status)


def test_an_unfit_home() -> None:
    for judge, reading, status in [
        (homes.judge_disk, replace(HOME, disk_free_bytes=5 * GIB), "warn"),
        (homes.judge_disk, replace(HOME, disk_free_bytes=2**20), "fail"),
        (homes.judge_disk, replace(HOME, disk_free_bytes=None), "skip"),
        (homes.judge_write, replace(HOME, write_bytes_per_second=9e6), "warn"),
        (homes.judge_write, replace(HOME, write_bytes_per_second=None, write_problem="read-only"), "fail"),
        (homes.judge_write, replace(HOME, write_bytes_per_second=None, write_problem="too full to try"), "skip"),
        (homes.judge_file_system, replace(HOME, file_system="nfs4"), "fail"),
        (homes.judge_file_system, replace(HOME, file_system=None), "skip"),
        (homes.judge_database, replace(HOME, database="malformed"), "fail"),
        (homes.judge_database, replace(HOME, database="slow"), "skip"),
        (homes.judge_database, replace(HOME, database="missing"), "skip"),
        (homes.judge_agent, replace(HOME, agent=None), "skip"),
        (homes.judge_agent, replace(HOME, agent=replace(AGENT, heartbeat_seconds=60.0)), "fail"),
        (homes.judge_agent, replace(HOME, agent=replace(AGENT, heartbeat_seconds=None)), "warn"),
        (homes.judge_agent, replace(HOME, agent=replace(AGENT, sampler_state="dead")), "warn"),
        (homes.judge_agent, replace(HOME, agent=replace(AGENT, version="0")), "warn"),
    ]:
        result = judge(reading)
        assert result.status == status and bool(result.remedy) == (status in ("warn", "fail")), (judge, reading, status)


def test_a_real_write_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    speed, problem = measure_write(folder, size_bytes=2**20)
    assert speed is not None and speed > 0 and problem is None and list(folder.iterdir()) == []
    speed, problem = measure_write(folder, size_bytes=2**20, deadline_seconds=0.001)
    assert speed is None and mentions(problem, "0.001 s")
    assert list(folder.iterdir()) == []
    assert measure_write(tmp_path / "missing", size_bytes=2**20)[1] == os.strerror(errno.ENOENT)
    (tmp_path / "file").touch()
    assert measure_write(tmp_path / "file", size_bytes=2**20)[1] == os.strerror(errno.ENOTDIR)


def test_databases_whole_damaged_and_missing(tmp_path: Path) -> None:
    path = tmp_path / "gputui.db"
    assert check_database(path)[0] == "missing"
    connection = open_writer(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    state, size, version = check_database(path)
    assert state == "ok" and size and version
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    assert check_database(path)[0] not in ("ok", "missing", "slow")
