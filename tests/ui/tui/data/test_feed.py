"""The feed: what is committed arrives, and whatever goes wrong becomes a sentence."""

from __future__ import annotations

import json
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from gputui.core.config import Workspace
from gputui.metrics.curves.model import ChartRequest
from gputui.store import commands
from gputui.store.commands import CommandAnswer
from gputui.store.database import open_commander, open_reader, set_aside
from gputui.ui.tui.data.feed import LOOK_SECONDS, QUIET_LOOK_SECONDS, Feed, look_seconds
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.views.snapshot import Interest, Moment, Snapshot
from gputui.ui.views.snapshot_json import snapshot_shape
from tests.homes import NOW, Home, an_hour_later
from tests.stories import overnight

DEADLINE_SECONDS = 60.0


class Listener:
    def __init__(self) -> None:
        self.snapshots: queue.Queue[Snapshot] = queue.Queue()
        self.answers: queue.Queue[CommandAnswer] = queue.Queue()

    def until(self, is_wanted: Callable[[Snapshot], bool]) -> Snapshot:
        end = time.monotonic() + DEADLINE_SECONDS
        while (remaining := end - time.monotonic()) > 0:
            snapshot = self.snapshots.get(timeout=remaining)
            if is_wanted(snapshot):
                return snapshot
        raise AssertionError("no such snapshot came")


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def feed(workspace: Workspace, listener: Listener) -> Iterator[Feed]:
    feed = Feed(workspace, wall=an_hour_later)
    feed.attach(listener.snapshots.put, listener.answers.put)
    yield feed
    feed.stop()
    assert "feed" not in [thread.name for thread in threading.enumerate()]


def test_the_first_snapshot_is_there_before_the_screen(feed: Feed, home: Home) -> None:
    overnight(home)
    feed.start()
    snapshot = feed.first(60.0)
    assert len(snapshot.gpus) == 8
    assert [row.run.run_id for row in snapshot.runs][:2] == ["vit-b16-1", "gpt2-124m-1"]
    assert snapshot.runs[1].progress.total_steps == 6000


def test_an_absurd_number_of_steps_leaves_the_json_readable(home: Home, workspace: Workspace) -> None:
    home.run("long-1")
    home.attempt("long-1", 1)
    lines = [
        {"step": step, "time": NOW - 1000 + 100 * step, "rank": 0, "total_steps": 1.7e308, "loss": math.inf}
        for step in range(5)
    ]
    home.metrics("long-1", 1, lines)
    with closing(open_reader(workspace.database)) as connection:
        snapshot = SnapshotReader(workspace).read(connection, NOW, Interest())
    assert snapshot.runs[0].progress.seconds_left == math.inf
    (shape,) = json.loads(json.dumps(snapshot_shape(snapshot, running=False, home=""), allow_nan=False))["runs"]
    assert shape["seconds_left"] is None
    assert shape["steps_per_second"] == 0.01
    assert shape["loss"] == "Infinity"


def test_a_commit_arrives(feed: Feed, home: Home, listener: Listener) -> None:
    overnight(home)
    feed.start()
    listener.until(lambda snapshot: bool(snapshot.gpus))
    home.event("something happened")
    arrived = listener.until(lambda snapshot: snapshot.events[-1].message == "something happened")
    assert len(arrived.gpus) == 8


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ((), QUIET_LOOK_SECONDS),
        (("succeeded", "failed", "stopped"), QUIET_LOOK_SECONDS),
        (("succeeded", "queued"), LOOK_SECONDS),
        (("running", "failed"), LOOK_SECONDS),
    ],
)
def test_a_store_without_a_live_run_is_looked_at_less_often(
    workspace: Workspace, home: Home, states: tuple[str, ...], seconds: float
) -> None:
    for number, state in enumerate(states):
        home.run(f"run-{number}", state=state)
    with closing(open_reader(workspace.database)) as connection:
        snapshot = SnapshotReader(workspace).read(connection, NOW, Interest())
    assert look_seconds(snapshot) == seconds


def test_before_anything_was_recorded_there_is_no_trouble(feed: Feed, workspace: Workspace, listener: Listener) -> None:
    feed.start()
    empty = feed.first(60.0)
    assert (empty.problem, empty.agent, empty.runs) == (None, None, ())
    with closing(Home(workspace)) as home:
        overnight(home)
        assert listener.until(lambda snapshot: bool(snapshot.gpus)).problem is None


def test_a_corrupt_database_becomes_a_sentence_and_the_screen_recovers(
    feed: Feed, workspace: Workspace, listener: Listener
) -> None:
    workspace.database.write_bytes(b"this is no database" * 1000)
    feed.start()
    snapshot = listener.until(lambda snapshot: snapshot.problem is not None)
    assert snapshot.problem is not None
    assert "is damaged" in snapshot.problem
    set_aside(workspace.database, time.time())
    with closing(Home(workspace)) as home:
        overnight(home)
        assert listener.until(lambda snapshot: bool(snapshot.gpus)).problem is None


def test_what_nobody_foresaw_is_told_and_does_not_end_the_feed(
    feed: Feed, home: Home, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    overnight(home)
    with monkeypatch.context() as patched:
        patched.setattr("gputui.ui.tui.data.feed.data_version", lambda _connection: {}["nothing"])
        feed.start()
        snapshot = listener.until(lambda snapshot: snapshot.problem is not None)
        assert snapshot.problem is not None
        assert "KeyError in test_feed.py, line" in snapshot.problem
    assert listener.until(lambda snapshot: bool(snapshot.gpus)).problem is None


def test_a_locked_database_holds_nothing_up(feed: Feed, workspace: Workspace, home: Home, listener: Listener) -> None:
    overnight(home)
    home.close()
    locker = sqlite3.connect(workspace.database, isolation_level=None)
    locker.execute("PRAGMA locking_mode = EXCLUSIVE")
    locker.execute("BEGIN EXCLUSIVE")
    feed.start()
    assert feed.first(0.2).agent is None
    snapshot = listener.until(lambda snapshot: snapshot.problem is not None)
    assert snapshot.problem is not None
    assert "locked by another program" in snapshot.problem
    locker.execute("ROLLBACK")
    locker.close()
    assert listener.until(lambda snapshot: bool(snapshot.gpus)).problem is None


def test_what_a_new_file_holds_is_read(feed: Feed, workspace: Workspace, home: Home, listener: Listener) -> None:
    overnight(home)
    feed.start()
    listener.until(lambda snapshot: bool(snapshot.gpus))
    set_aside(workspace.database, time.time())
    elsewhere = Home(workspace)
    try:
        elsewhere.agent(problem="No NVIDIA driver found.")
        snapshot = listener.until(lambda snapshot: not snapshot.gpus and snapshot.agent is not None)
        assert snapshot.agent is not None
        assert snapshot.agent.gpu_problem == "No NVIDIA driver found."
    finally:
        elsewhere.close()


def test_the_page_of_a_run_is_read_when_it_is_looked_at(feed: Feed, home: Home, listener: Listener) -> None:
    overnight(home)
    feed.start()
    assert feed.first(60.0).page is None
    feed.look_at(Interest("vit-b16-1"))
    page = listener.until(lambda snapshot: snapshot.page is not None).page
    assert page is not None
    assert [attempt.number for attempt in page.attempts] == [1, 2, 3]
    assert page.launched["batch_size"] == 512
    assert page.run.params["batch_size"] == 384
    assert page.charts is None
    feed.look_at(Interest("vit-b16-1", charts=ChartRequest(("loss", "lr"))))
    charts = listener.until(lambda snapshot: snapshot.page is not None and snapshot.page.charts is not None).page
    assert charts is not None
    assert charts.charts is not None
    assert [curve.problem for curve in charts.charts.curves.values()] == [None, None]
    assert charts.charts.curves["loss"].last is not None
    assert charts.charts.markers


def test_the_answer_to_a_command_is_told(feed: Feed, workspace: Workspace, home: Home, listener: Listener) -> None:
    overnight(home)
    feed.start()
    commander = open_commander(workspace.database)
    command_id = commands.submit(commander, "stop", "vit-b16-1", {}, "me", now=time.time())
    commander.close()
    commands.give_answer(home.connection, command_id, "refused", now=time.time(), reason="it is over")
    listener.until(lambda snapshot: bool(snapshot.gpus))
    feed.watch(command_id)  # the answer came before anybody waited for it
    answer = listener.answers.get(timeout=DEADLINE_SECONDS)
    assert (answer.command_id, answer.state, answer.reason) == (command_id, "refused", "it is over")


def test_a_past_moment_is_read_once_and_returned_from(feed: Feed, home: Home, listener: Listener) -> None:
    overnight(home)
    feed.start()
    feed.first(60.0)
    moment = Moment(NOW - 30)
    feed.look_back(moment)
    back = listener.until(lambda snapshot: snapshot.past is not None)
    assert (back.at, back.past.request if back.past else None) == (NOW - 30, moment)
    feed.look_at(Interest("vit-b16-1"))  # a page opened meanwhile is of the same moment
    page = listener.until(lambda snapshot: snapshot.page is not None)
    assert page.at == NOW - 30
    assert page.past is not None
    home.event("something happened")
    later = listener.until(lambda snapshot: snapshot.past is not None and snapshot.past.now > page.past.now)
    assert later.events == back.events
    assert later.gpus is page.gpus
    feed.look_back(None)
    live = listener.until(lambda snapshot: snapshot.past is None)
    assert live.events[-1].message == "something happened"
    assert live.page is not None
