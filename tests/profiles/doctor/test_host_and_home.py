"""Checks of the host, its limits, and a home's disk, database and agent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.core.config import locate
from gputui.machine.systemd import LogoutEnd
from gputui.profiles.doctor import home, host
from gputui.profiles.doctor.home import AgentReading, measure_write, read_database
from gputui.profiles.home_files import mistakes
from gputui.runs.checks import CheckResult
from gputui.store.database import open_writer
from gputui.version import VERSION
from tests.texts import mentions

GIB = 2**30
AGENT = AgentReading(7, VERSION, 1.0, 0.4, "ok")
OTHERS = [(9, "/other/state")]

JUDGED: dict[str, list[CheckResult]] = {
    "pass": [
        host.check_memory(64 * GIB, 128 * GIB),
        host.check_swap(0, 8 * GIB),
        host.check_swap(0, 0),
        host.check_shm((32 * GIB, 64 * GIB)),
        host.check_open_files(65536, -1),
        host.check_open_files(-1, -1),
        host.check_file_size(None),
        host.check_pidfds(works=True),
        host.check_clock(True),
        host.check_logout(None),
        host.check_linger(True),
        host.check_oom_kills(0, 0),
        home.check_disk("/s", (500 * GIB, 1000 * GIB)),
        home.check_write("/s", 1e9, problem=None),
        home.check_file_system("/s", "ext4"),
        home.check_database("/s", "ok", 2**20, 12),
        home.check_agent(AGENT),
        home.check_other_agents([]),
        home.check_other_agents(OTHERS),
        home.check_messages([("ntfy", None), ("mail", None)]),
    ],
    "warn": [
        host.check_memory(3 * GIB, 128 * GIB),
        host.check_swap(5 * GIB, 8 * GIB),
        host.check_shm((2**20, 64 * GIB)),
        host.check_open_files(1024, 65536),
        host.check_file_size(GIB),
        host.check_pidfds(works=False),
        host.check_clock(False),
        host.check_logout(LogoutEnd("a logout ends it", "run loginctl")),
        host.check_linger(False),
        host.check_oom_kills(2, None),
        home.check_disk("/s", (5 * GIB, 1000 * GIB)),
        home.check_write("/s", 9e6, problem=None),
        home.check_agent(replace(AGENT, heartbeat_seconds=None)),
        home.check_agent(replace(AGENT, sampler_state="dead")),
        home.check_agent(replace(AGENT, version="0")),
    ],
    "fail": [
        host.check_shm((0, 64 * 2**20)),
        host.check_open_files(256, 65536),
        home.check_disk("/s", (2**20, 1000 * GIB)),
        home.check_write("/s", bytes_per_second=None, problem="read-only"),
        home.check_file_system("/s", "nfs4"),
        home.check_database("/s", "malformed", 2**20, 12),
        home.check_agent(replace(AGENT, heartbeat_seconds=60.0)),
        home.check_agent(replace(AGENT, is_stopped=True)),
        home.check_messages([("ntfy", None), ("mail", "no mail here")]),
    ],
    "skip": [
        host.check_shm(None),
        host.check_clock(None),
        host.check_linger(None),
        host.check_oom_kills(None, None),
        home.check_disk("/s", None),
        home.check_write("/s", bytes_per_second=None, problem=home.TOO_FULL),
        home.check_write("/s", bytes_per_second=None, problem=home.ONLY_READ),
        home.check_file_system("/s", None),
        home.check_database("/s", "slow", 2**20, 12),
        home.check_database("/s", "missing", size_bytes=None, schema=None),
        home.check_agent(None),
        home.check_messages([]),
        home.check_messages(home.ANOTHERS),
    ],
}


def test_what_is_said_of_figures() -> None:
    for status, results in JUDGED.items():
        for result in results:
            assert result.status == status, result
            assert bool(result.remedy) == (status in ("warn", "fail")), result


def test_this_machine_is_checked(tmp_path: Path) -> None:
    results = [*host.check_host(), *home.check_home(locate(tmp_path, {}), 1e9)]
    assert len({result.name for result in results}) == len(results) == 19


def test_a_home_that_is_only_read_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "measure_write", lambda _folder: pytest.fail("it was written to"))
    results = {result.name: result for result in home.check_home(locate(tmp_path, {}), 1e9, is_readonly=True)}
    assert results["disk speed"].status == "skip"


def test_mistakes_in_settings_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = locate(tmp_path, {})
    assert mistakes(workspace) == []
    workspace.notify.write_text("- {to: tell, event: [alert]}\n")
    workspace.gpus.write_text("usee: [0]\n")
    problems = mistakes(workspace)
    assert [mentions(text, name, ":1") for text, name in zip(problems, ("notify.yaml", "gpus.yaml"), strict=True)]
    monkeypatch.setattr(os, "access", lambda path, _: path != workspace.gpus)
    assert len(mistakes(workspace)) == 2
    assert len(mistakes(workspace, is_anothers=True)) == 1
    assert home.check_settings(problems).status == "fail"
    assert home.check_settings([]).status == "pass"


def test_a_real_write_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    speed, problem = measure_write(folder, size_bytes=2**20)
    assert speed is not None
    assert speed > 0
    assert problem is None
    assert list(folder.iterdir()) == []
    speed, problem = measure_write(folder, size_bytes=2**20, deadline_seconds=0.001)
    assert speed is None
    assert mentions(problem, "0.001 s")
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
    assert state == "ok"
    assert size
    assert version
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    assert read_database(path)[0] not in ("ok", "missing", "slow")
