"""What the agent knows of a living attempt when it begins to watch it, and when lines come."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.health.attempt_state import AttemptState, ProcessSnapshot
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.config import Workspace
from gputui.recovery.watch.progress import ProgressSilence, silence
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.process_readings import ProcessReading
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import WatchedLine, newest_lines
from tests.stores import open_store

NOW = 1_000_000.0
RECORD = Attempt(
    run_id="r",
    number=2,
    state="running",
    params={},
    gpus=(),
    launch={},
    created_at=NOW - 500,
    started_at=NOW - 500,
)


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_store(workspace.database)
    made.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('r', 1, 'r', 'r', 'running', '{}', '{}', 0)"
    )
    made.execute("INSERT INTO metric_sources (source_id, run_id, path, format) VALUES (1, 'r', 'p', 'jsonl')")
    with closing(made):
        yield made


def write(connection: sqlite3.Connection, attempt: int, *lines: dict[str, object]) -> None:
    (offset,) = connection.execute("SELECT byte_offset FROM metric_sources").fetchone()
    for line in lines:
        connection.execute(
            "INSERT INTO metrics VALUES (1, 0, ?, ?, ?, ?, ?, ?)",
            (offset, attempt, line.get("rank"), line.get("step"), line.get("time"), json.dumps(line)),
        )
        offset += 1
    connection.execute("UPDATE metric_sources SET byte_offset = ?", (offset,))


def test_a_successor_knows_how_long_the_silence_has_lasted(connection: sqlite3.Connection) -> None:
    write(connection, 1, *({"step": step, "time": NOW - 9000 + step * 40.0} for step in range(20)))
    write(connection, 2, {"step": 20, "time": NOW - 100.0})
    watched = AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW)
    assert watched.progress_at == 5.0 - 100.0
    assert watched.course.pace.longest_gap == 40.0
    assert silence(watched.course, 100.0, 10.0).allowed_seconds == 120.0


def test_times_of_another_beginning_say_nothing_of_the_silence(connection: sqlite3.Connection) -> None:
    write(connection, 2, {"step": 1, "time": 12.5})
    assert AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW).progress_at == 5.0


def test_a_nan_that_a_predecessor_did_not_live_to_tell_is_told(connection: sqlite3.Connection) -> None:
    write(connection, 2, *({"step": step, "loss": "NaN"} for step in range(9)))
    watched = AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW)
    assert [(one.kind, one.step) for one in watched.pending] == [("nan_loss", 0)]


def test_lines_without_a_time_are_timed_by_their_arrival(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW)
    for step in range(20):
        watched.take([WatchedLine(2, None, step, None, None, {})], 5.0 + step * 30.0, NOW + step * 30.0)
    assert watched.course.pace.longest_gap == 30.0


def test_a_clock_that_is_set_explains_no_silence(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
    for step in range(40):
        wall = NOW + step * 10.0 + (3600.0 if step > 20 else 0.0)
        watched.take([WatchedLine(2, None, step, wall, None, {})], step * 10.0, wall)
    assert watched.course.pace.longest_gap == 12.0


def test_lines_that_are_held_back_in_a_buffer_explain_the_silence_until_they_come(
    connection: sqlite3.Connection,
) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
    for block in range(4):
        lines = [WatchedLine(2, None, block * 80 + step, NOW + block * 80.0 + step, None, {}) for step in range(80)]
        watched.take(lines, (block + 1) * 80.0, NOW + (block + 1) * 80.0)
    assert watched.course.pace.longest_gap == 78.0


def test_silence_counts_anew_when_nobody_could_have_seen_progress(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
    watched.take([WatchedLine(2, None, 1, NOW, None, {})], 10.0, NOW)
    watched.restart_silence(5000.0)
    assert not silence(watched.course, 5010.0 - watched.progress_at, 60.0).is_overdue


def test_only_what_is_new_is_looked_at(connection: sqlite3.Connection) -> None:
    write(connection, 2, {"step": 1, "loss": 1.0}, {"step": 1, "event": "checkpoint"})
    lines, cursor = newest_lines(connection, "r", {}, 100)
    assert [(line.step, line.event, dict(line.values)) for line in lines] == [
        (1, None, {"loss": 1.0}),
        (1, "checkpoint", {}),
    ]
    assert newest_lines(connection, "r", cursor, 100) == ([], cursor)
    write(connection, 2, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 3.0}, {"step": 4, "loss": "Infinity"})
    lines, _ = newest_lines(connection, "r", cursor, 2)
    assert [(line.step, line.values["loss"]) for line in lines] == [(3, 3.0), (4, float("inf"))]


def test_a_file_with_a_line_now_and_then_explains_no_silence(connection: sqlite3.Connection) -> None:
    write(connection, 2, *({"step": step, "time": NOW - 400 + step} for step in range(400)))
    connection.execute(
        "INSERT INTO metric_sources (source_id, run_id, path, format, byte_offset) VALUES (2, 'r', 'val', 'jsonl', 4)"
    )
    for number in range(4):
        line = {"step": 100 * number, "time": NOW - 400 + 100.0 * number}
        row = (2, 0, number, 2, None, line["step"], line["time"], json.dumps(line))
        connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    watched = AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW)
    assert watched.course.pace.longest_gap == 1.0 and watched.progress_at == 5.0 - 1.0


def test_lines_of_other_attempts_are_no_progress(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=5.0, wall=NOW)
    before = watched.progress_at
    watched.take([WatchedLine(1, None, 9, NOW, None, {})], 50.0)
    assert watched.progress_at == before
    watched.take([WatchedLine(2, None, 9, NOW, None, {})], 60.0)
    assert watched.progress_at == 60.0


def looks(watched: AttemptState, busy: Callable[[float], bool]) -> list[tuple[float, str, bool]]:
    """What is made of a look every two seconds from 100 to 200 s, in a silence that nothing explains."""
    found, cpu = [], 0.0
    for at in (100.0 + 2.0 * count for count in range(51)):
        cpu += 2.0 if busy(at) else 0.0
        look = ProcessSnapshot(at, {None: [ProcessReading(1, 1, "S", cpu, 0.0, 0, 0)]}, [], 1)
        verdict, is_certain = watched.assess(look, {}, ProgressSilence("steps", at, 60.0), 60.0)
        if verdict is not None:
            found.append((at, verdict.kind, is_certain))
    return found


def test_a_hang_is_certain_after_ten_seconds(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
    watched.had_lines = True
    assert next(at for at, kind, is_certain in looks(watched, lambda at: False) if is_certain) == 112.0


def test_work_has_pauses_before_a_silence_of_it_is_a_hang(connection: sqlite3.Connection) -> None:
    watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
    watched.had_lines = True
    paused = looks(watched, lambda at: not 120.0 < at <= 140.0)
    assert not any(is_certain for _, _, is_certain in paused)
    watched.restart_silence(0.0)
    hung = looks(watched, lambda at: at <= 120.0)
    assert next(at for at, _, is_certain in hung if is_certain) == 146.0


def test_an_agent_that_was_suspended_counts_silence_anew(connection: sqlite3.Connection, workspace: Workspace) -> None:
    now = [1000.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: now[0])
    watching = HealthMonitor(context)
    watching.turn([])
    watched = AttemptState.begin(connection, RECORD, clock=1000.0, wall=NOW)
    attempt = LiveAttempt(RECORD, ExecutorProcess(None), watched=watched)
    now[0] += 4.0
    watching.turn([attempt])
    assert watched.progress_at == 1000.0 - (NOW - (NOW - 500))
    now[0] += 5000.0
    watching.turn([attempt])
    assert watched.progress_at == now[0]


def test_lines_of_one_rank_beyond_the_first_are_noticed(connection: sqlite3.Connection) -> None:
    def lone_rank(*ranks: int | None) -> int | None:
        watched = AttemptState.begin(connection, RECORD, clock=0.0, wall=NOW)
        steps = ((step, rank) for step in range(9) for rank in ranks)
        watched.take([WatchedLine(2, rank, step, None, None, {"loss": 1.0}) for step, rank in steps], 1.0)
        assert watched.lone_rank is None
        watched.take(
            [WatchedLine(2, rank, step, None, None, {"loss": 1.0}) for rank in ranks for step in (30, 50)] * 10, 2.0
        )
        return watched.lone_rank

    assert lone_rank(16) == 16
    assert lone_rank(0) is lone_rank(None) is lone_rank(0, 1) is None
