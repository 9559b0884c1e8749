"""Logs of runs and of the agent that stay within bounds, and sizes of runs that are over."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.log_sizes import LOOK_SECONDS, LogBounds, Quota, rotate, trim
from gputui.agent.maintenance import SIZES_SECONDS, RunSizes
from gputui.core.config import Workspace
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import repository
from gputui.runs.logs import read_window, tail_text
from gputui.store.attempts import Attempt
from gputui.store.run_states import RunState
from gputui.store.runs import get_run, read_runs, runs_mark
from tests.conftest import wait_until
from tests.homes import NOW, add_run

MIB = 1 << 20
QUOTA = Quota(limit_bytes=8 * MIB, head_bytes=MIB, tail_bytes=2 * MIB)
LINE = b"a line of the log, sixty-four bytes long with its line feed ....\n"


def look_at_logs(bounds: LogBounds, now: float, number: int) -> None:
    """Let the bounds look at the logs of an attempt."""
    bounds.poll(now, [Attempt("job-1", number, "running", params={}, gpus=(), launch={}, created_at=0.0)])
    wait_until(lambda: not bounds.context.jobs.is_busy, what="the look")
    bounds.poll(now, [])


@pytest.fixture
def sizes(workspace: Workspace, connection: sqlite3.Connection) -> RunSizes:
    return RunSizes(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))


def measured(sizes: RunSizes, run_id: str = "a-1") -> int | None:
    """The size of a run after a look."""
    begin = sizes.next_at

    def look() -> bool:
        sizes.poll(begin)
        return sizes.next_at > begin

    wait_until(look, what="the end of a look")
    run = get_run(sizes.context.connection, run_id)
    assert run is not None
    assert sizes.next_at == begin + SIZES_SECONDS
    return run.size_bytes


# --- logs


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
        look_at_logs(bounds, look * LOOK_SECONDS, 2)
    [(kind, key, run_id, attempt, message)] = connection.execute(
        "SELECT kind, key, run_id, attempt, message FROM events"
    ).fetchall()
    assert (kind, key, run_id, attempt) == ("log_trimmed", str(path), "job-1", 2)
    assert "8 MiB" in message
    assert "6 MiB" in message


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
        look_at_logs(bounds, now, 1)
        more = ingest.pump().more
        now += LOOK_SECONDS
    look_at_logs(bounds, now, 1)
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


# --- runs


def test_a_run_is_measured_when_it_is_over(sizes: RunSizes) -> None:
    context = sizes.context
    add_run(context.connection, "b-1", RunState.STARTING, workspace=context.workspace)
    run = add_run(context.connection, "a-1", RunState.STOPPED, workspace=context.workspace)
    model = context.workspace.run_dir("a-1") / "model.pt"
    model.write_bytes(b"x" * MIB)
    assert run.size_bytes is None
    mark = runs_mark(context.connection)
    first = measured(sizes)
    assert first is not None
    assert MIB <= first < 2 * MIB
    assert runs_mark(context.connection) != mark
    assert measured(sizes, "b-1") is None
    # The run is resumed, and ends again.
    run = read_runs(context.connection, over_only=True)[0]
    repository.move(context.connection, run, RunState.QUEUED, cause="test", now=NOW + 1)
    assert measured(sizes) is None
    model.write_bytes(b"x" * 3 * MIB)
    run = next(run for run in read_runs(context.connection) if run.run_id == "a-1")
    repository.move(context.connection, run, RunState.STOPPED, cause="test", now=NOW + 2)
    second = measured(sizes)
    assert second is not None
    assert second == first + 2 * MIB


def test_what_was_measured_before_a_run_went_on_is_dropped(sizes: RunSizes) -> None:
    connection = sizes.context.connection
    run = add_run(connection, "a-1", RunState.STOPPED, workspace=sizes.context.workspace)
    assert run.ended_at is not None
    repository.set_size(connection, "a-1", run.ended_at - 1, 5)
    assert repository.unmeasured_runs(connection) == [("a-1", run.ended_at)]
    connection.execute("DELETE FROM runs")
    repository.set_size(connection, "a-1", run.ended_at, 5)
    assert connection.execute("SELECT count(*) FROM run_sizes").fetchone() == (0,)
