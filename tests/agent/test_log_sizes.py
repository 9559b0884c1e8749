"""Logs of runs and of the agent that stay within bounds."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.log_sizes import LOOK_SECONDS, LogBounds, Quota, rotate, trim
from gputui.core.config import Workspace
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs.logs import read_window, tail_text
from gputui.store.attempts import Attempt
from gputui.store.run_states import RunState
from tests.conftest import wait_until
from tests.homes import add_run

MIB = 1 << 20
QUOTA = Quota(limit_bytes=8 * MIB, head_bytes=MIB, tail_bytes=2 * MIB)
LINE = b"a line of the log, sixty-four bytes long with its line feed ....\n"


def looked(bounds: LogBounds, now: float, number: int) -> None:
    bounds.poll(now, [Attempt("job-1", number, "running", {}, (), {}, 0.0)])
    wait_until(lambda: not bounds.context.jobs.is_busy, what="the look")
    bounds.poll(now, [])


def test_a_log_that_is_written_on_loses_its_middle_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    # Opened as torchrun does: for writing, not for appending.
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
    offset = 0
    lines = []
    while offset < path.stat().st_size:
        window = read_window(path, offset, 256 << 10)
        assert "\0" not in window.text
        lines += window.text.splitlines()
        offset = window.end
    assert lines[0] == LINE.decode().rstrip("\n")
    assert lines[-1] == "the last line"
    assert sum("dropped here" in line for line in lines) == 1
    # The marker takes the place of the end of the head; the line that the gap ends in is cut.
    assert 3 * MIB // len(LINE) - 5 <= lines.count(LINE.decode().rstrip("\n")) < count
    assert "\0" not in tail_text(path, 8 * MIB)


def test_the_agent_tells_what_it_dropped_once(workspace: Workspace, connection: sqlite3.Connection) -> None:
    path = workspace.run_dir("job-1") / "attempts" / "2" / "nodes" / "0" / "output.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 9 * MIB)
    bounds = LogBounds(AgentContext.of(connection, workspace, wake=lambda: None), QUOTA)
    for look in range(3):
        looked(bounds, look * LOOK_SECONDS, 2)
    [(kind, key, run_id, attempt, message)] = connection.execute(
        "SELECT kind, key, run_id, attempt, message FROM events"
    ).fetchall()
    assert (kind, key, run_id, attempt) == ("log_trimmed", str(path), "job-1", 2)
    assert "8 MiB" in message and "6 MiB" in message


def test_a_new_agent_does_not_drop_metrics_that_nobody_has_read(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    """Reads and looks in turns, as the agent does, at an output that grew while there was no agent."""
    add_run(connection, "job-1", RunState.STARTING)
    run_dir = workspace.run_dir("job-1")
    folder = run_dir / "attempts" / "1" / "nodes" / "0"
    folder.mkdir(parents=True)
    count = 12 * MIB // 8192
    (folder / "output.log").write_text("".join(f"step {step:8}\n{'x' * 8177}\n" for step in range(count)))
    ingest = MetricsIngest(connection)
    ingest.open_source("job-1", str(run_dir), "stdout", Reading((r"step +(?P<step>\d+)",)))
    ingest.begin_attempt("job-1", 1, "nodes/0/output.log")
    bounds = LogBounds(AgentContext.of(connection, workspace, wake=lambda: None), QUOTA)
    now = 0.0
    more = True
    while more:
        looked(bounds, now, 1)
        more = ingest.pump().more
        now += LOOK_SECONDS
    looked(bounds, now, 1)
    ingest.close()
    stored = connection.execute("SELECT count(*), max(step), max(generation) FROM metrics").fetchone()
    assert stored == (count, count - 1, 0)
    assert (folder / "output.log").stat().st_blocks * 512 <= 8 * MIB


def test_three_files_are_kept_and_every_line_is_in_one_of_them(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        assert not rotate(log, 100)
        for number in range(4):
            os.write(writer, f"part {number}\n".encode() + b"x" * 100)
            assert rotate(log, 100)
            assert log.stat().st_size == 0
        os.write(writer, b"still open\n")
        assert not rotate(log, 100)
    finally:
        os.close(writer)
    assert sorted(path.name for path in tmp_path.glob("agent.log*")) == ["agent.log", "agent.log.1", "agent.log.2"]
    texts = [(tmp_path / name).read_text().splitlines()[0] for name in ("agent.log", "agent.log.1", "agent.log.2")]
    assert texts == ["still open", "part 3", "part 2"]
    assert (tmp_path / "agent.log.1").stat().st_mode & 0o077 == 0
