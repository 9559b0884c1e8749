"""What is said of the host, its limits, and a home's disk, database and agent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from msgspec.structs import replace

from gputui.core.config import locate
from gputui.machine.systemd import LogoutEnd
from gputui.profiles.doctor import home, host
from gputui.profiles.doctor.home import AgentReading, measure_write, read_database
from gputui.runs.checks import CheckResult
from gputui.store.database import open_writer
from gputui.version import VERSION
from tests.tables import table
from tests.texts import mentions

GIB = 2**30
AGENT = AgentReading(7, VERSION, 1.0, 0.4, "ok")
OTHERS = [(9, "/other/state")]

# result, status
JUDGED: list[tuple[CheckResult, str]] = [
    (host.check_memory(64 * GIB, 128 * GIB), "pass"),
    (host.check_memory(3 * GIB, 128 * GIB), "warn"),
    (host.check_swap(0, 8 * GIB), "pass"),
    (host.check_swap(5 * GIB, 8 * GIB), "warn"),
    (host.check_swap(0, 0), "pass"),
    (host.check_shm((32 * GIB, 64 * GIB)), "pass"),
    (host.check_shm((0, 64 * 2**20)), "fail"),
    (host.check_shm((2**20, 64 * GIB)), "warn"),
    (host.check_shm(None), "skip"),
    (host.check_open_files(65536, -1), "pass"),
    (host.check_open_files(-1, -1), "pass"),
    (host.check_open_files(1024, 65536), "warn"),
    (host.check_open_files(256, 65536), "fail"),
    (host.check_file_size(None), "pass"),
    (host.check_file_size(GIB), "warn"),
    (host.check_pidfds(works=True), "pass"),
    (host.check_pidfds(works=False), "warn"),
    (host.check_clock(True), "pass"),
    (host.check_clock(False), "warn"),
    (host.check_clock(None), "skip"),
    (host.check_logout(None), "pass"),
    (host.check_logout(LogoutEnd("a logout ends it", "run loginctl")), "warn"),
    (host.check_linger(True), "pass"),
    (host.check_linger(False), "warn"),
    (host.check_linger(None), "skip"),
    (host.check_oom_kills(0, 0), "pass"),
    (host.check_oom_kills(2, None), "warn"),
    (host.check_oom_kills(None, None), "skip"),
    (home.check_disk("/s", (500 * GIB, 1000 * GIB)), "pass"),
    (home.check_disk("/s", (5 * GIB, 1000 * GIB)), "warn"),
    (home.check_disk("/s", (2**20, 1000 * GIB)), "fail"),
    (home.check_disk("/s", None), "skip"),
    (home.check_write("/s", 1e9, None), "pass"),
    (home.check_write("/s", 9e6, None), "warn"),
    (home.check_write("/s", None, "read-only"), "fail"),
    (home.check_write("/s", None, home.TOO_FULL), "skip"),
    (home.check_file_system("/s", "ext4"), "pass"),
    (home.check_file_system("/s", "nfs4"), "fail"),
    (home.check_file_system("/s", None), "skip"),
    (home.check_database("/s", "ok", 2**20, 12), "pass"),
    (home.check_database("/s", "malformed", 2**20, 12), "fail"),
    (home.check_database("/s", "slow", 2**20, 12), "skip"),
    (home.check_database("/s", "missing", None, None), "skip"),
    (home.check_agent(AGENT), "pass"),
    (home.check_agent(None), "skip"),
    (home.check_agent(replace(AGENT, heartbeat_seconds=60.0)), "fail"),
    (home.check_agent(replace(AGENT, is_stopped=True)), "fail"),
    (home.check_agent(replace(AGENT, heartbeat_seconds=None)), "warn"),
    (home.check_agent(replace(AGENT, sampler_state="dead")), "warn"),
    (home.check_agent(replace(AGENT, version="0")), "warn"),
    (home.check_other_agents([]), "pass"),
    (home.check_other_agents(OTHERS), "pass"),
]


@table(("result", "status"), JUDGED)
def test_what_is_said_of_figures(result: CheckResult, status: str) -> None:
    assert result.status == status and bool(result.remedy) == (status in ("warn", "fail"))


def test_this_machine_is_checked(tmp_path: Path) -> None:
    results = [*host.check_host(), *home.check_home(locate(tmp_path, {}), 1e9)]
    assert len({result.name for result in results}) == len(results) == 16


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
    assert read_database(path)[0] == "missing"
    connection = open_writer(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    state, size, version = read_database(path)
    assert state == "ok" and size and version
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    assert read_database(path)[0] not in ("ok", "missing", "slow")
