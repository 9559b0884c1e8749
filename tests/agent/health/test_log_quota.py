"""A log that grows without bound loses its middle, says so, and is read on both sides of the gap."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.health.log_quota import LOOK_SECONDS, AttemptFolder, LogBounds
from gputui.agent.health.log_trimming import Quota, gap, trim, trim_all
from gputui.config import Workspace
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.logs import read_window, tail_text
from tests.conftest import wait_until
from tests.stores import open_store

MIB = 1 << 20
QUOTA = Quota(limit_bytes=8 * MIB, head_bytes=MIB, tail_bytes=2 * MIB)
LINE = b"a line of the log, sixty-four bytes long with its line feed ....\n"


def test_what_is_lost() -> None:
    assert gap(3 * MIB, QUOTA) is None
    assert gap(10 * MIB, QUOTA) == (MIB, 8 * MIB)
    assert gap(10 * MIB + 7, QUOTA) == (MIB, 8 * MIB)


def test_what_was_not_read_for_its_metrics_is_not_lost() -> None:
    assert gap(10 * MIB, QUOTA, 0) is None
    assert gap(10 * MIB, QUOTA, MIB + 65536) is None
    assert gap(10 * MIB, QUOTA, 4 * MIB + 7) == (MIB, 4 * MIB - 65536)
    assert gap(10 * MIB, QUOTA, 10 * MIB) == (MIB, 8 * MIB)


def test_a_log_that_is_written_on_loses_its_middle_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    # Not for appending, as torchrun opens it.
    with path.open("wb", buffering=0) as writer:
        count = 0
        while writer.tell() < 12 * MIB:
            writer.write(LINE * 1000)
            count += 1000
        size = writer.tell()
        assert trim(path, QUOTA) == 9 * MIB + (size - 12 * MIB) // 65536 * 65536
        assert trim(path, QUOTA) is None
        writer.write(b"the last line\n")
    assert path.stat().st_size == size + len(b"the last line\n")
    assert path.stat().st_blocks * 512 < 4 * MIB
    offset, lines = 0, []
    while offset < path.stat().st_size:
        window = read_window(path, offset, 256 << 10)
        assert "\0" not in window.text
        lines += window.text.splitlines()
        offset = window.end
    assert lines[0] == LINE.decode().rstrip("\n")
    assert lines[-1] == "the last line"
    assert sum("bytes of this log were dropped here" in line for line in lines) == 1
    # The marker takes the place of the end of the head; the line that the gap ends in is cut.
    assert 3 * MIB // len(LINE) - 5 <= lines.count(LINE.decode().rstrip("\n")) < count
    assert "\0" not in tail_text(path, 8 * MIB)


def test_a_small_log_is_left_alone_and_so_is_what_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LINE * 100)
    assert trim_all([path, tmp_path / "none.log"], QUOTA) == []
    assert path.read_bytes() == LINE * 100


def test_a_sparse_log_takes_no_room_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sparse.log"
    with path.open("wb") as file:
        file.seek(64 * MIB)
        file.write(b"end\n")
    assert trim(path, QUOTA) is None


def test_where_it_cannot_be_done_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 9 * MIB)
    link = tmp_path / "link.log"
    link.symlink_to(path)
    (found,) = trim_all([link], QUOTA)
    assert found.problem and found.missing_bytes == 0
    assert path.stat().st_blocks * 512 >= 9 * MIB


def test_the_agent_tells_what_it_dropped_and_once_what_it_cannot(tmp_path: Path, workspace: Workspace) -> None:
    connection = open_store(workspace.database)
    (tmp_path / "output.log").write_bytes(b"x" * 9 * MIB)
    bounds = LogBounds(AgentContext.of(connection, workspace, wake=lambda: None), QUOTA)
    here = AttemptFolder("job-1", 2, tmp_path)

    def look(now: float) -> list[tuple[str, str, str, int, str]]:
        bounds.turn(now, [here])
        wait_until(lambda: bounds.job is None or bounds.job.is_over, what="the look")
        bounds.turn(now, [here])
        return connection.execute("SELECT kind, key, run_id, attempt, message FROM events").fetchall()

    ((kind, key, run_id, attempt, message),) = look(0.0)
    assert (kind, key, run_id, attempt) == ("log_trimmed", str(tmp_path / "output.log"), "job-1", 2)
    assert "8 MiB" in message and "6 MiB" in message
    assert len(look(LOOK_SECONDS)) == 1
    target = tmp_path / "far.log"
    (tmp_path / "output.log").rename(target)
    target.write_bytes(b"x" * 9 * MIB)
    (tmp_path / "output.log").symlink_to(target)
    connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        look(2 * LOOK_SECONDS)
    connection.execute("PRAGMA query_only = 0")
    bounds.turn(2 * LOOK_SECONDS, [here])
    assert [row[0] for row in look(3 * LOOK_SECONDS)] == ["log_trimmed", "log_unbounded"]
    connection.close()


def test_a_new_agent_does_not_drop_metrics_that_nobody_has_read(tmp_path: Path, workspace: Workspace) -> None:
    """Reads and looks in turns, as the agent does, at an output that grew while there was no agent."""
    connection = open_store(workspace.database)
    connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('job-1', 1, 'job', 'p', 'running', '{}', '{}', 0)"
    )
    run_dir = workspace.run_dir("job-1")
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True)
    count = 12 * MIB // 8192
    (folder / "output.log").write_text("".join(f"step {step:8}\n{'x' * 8177}\n" for step in range(count)))
    ingest = MetricsIngest(connection)
    ingest.open_source("job-1", str(run_dir), "stdout", Reading((r"step +(?P<step>\d+)",)))
    ingest.begin_attempt("job-1", 1)
    bounds = LogBounds(AgentContext.of(connection, workspace, wake=lambda: None), QUOTA)
    now = 0.0
    more = True
    while more:
        bounds.turn(now, [AttemptFolder("job-1", 1, folder)])
        wait_until(lambda: bounds.job is None or bounds.job.is_over, what="the look")
        more = ingest.pump().more
        now += LOOK_SECONDS
    bounds.turn(now, [AttemptFolder("job-1", 1, folder)])
    wait_until(lambda: bounds.job is None or bounds.job.is_over, what="the look")
    ingest.close()
    assert connection.execute("SELECT count(*), max(step) FROM metrics").fetchone() == (count, count - 1)
    assert connection.execute("SELECT max(generation) FROM metrics").fetchone() == (0,)
    assert (folder / "output.log").stat().st_blocks * 512 <= 8 * MIB
    connection.close()
