"""What happens is told once to those who want it, whenever an agent dies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.agent.notify.news import News
from gputui.agent.notify.outbox import Outbox
from gputui.core.config import Workspace, locate
from gputui.runs import notices, repository
from gputui.runs.notices import EVENTS, Message
from gputui.runs.repository import transaction
from gputui.store import alerts
from gputui.store.events import read_events
from gputui.store.rows import insert
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, get_study
from gputui.studies.rows import move_study
from tests.homes import NOW, SPEC, Home, add_run, run_of
from tests.stories import search

LIVES = (RunState.STARTING, RunState.RUNNING)
FAILS = (*LIVES, RunState.FAILED)
RECOVERS = (*LIVES, RunState.RECOVERING, RunState.QUEUED, RunState.STARTING, RunState.RUNNING)
ALERT = {
    "rule": "disk", "severity": "error", "subject_kind": "host", "subject_id": "", "subject_name": "the host",
    "raised_at": NOW, "unit": "%", "sentence": "The disk is full", "remedy": "remove runs",
}  # fmt: skip

ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)


class NewsHome(Home):
    """A home whose messages are not sent, since the recipients' file names a command that nobody starts."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, NOW - 10)
        self.news = self.another()

    def another(self) -> News:
        """The news of the next agent."""
        context = self.context()
        news = News(context, _NoOutbox(context), host="ws1")
        news.begin()
        return news

    def tells(self, *entries: str) -> None:
        """Write notify.yaml."""
        self.workspace.notify.write_text("\n".join(f"- {entry}" for entry in entries) + "\n")

    def turn(self) -> list[str]:
        """The events of the messages that are new after a turn."""
        before = self.value("SELECT coalesce(max(notice_id), 0) FROM notices")
        self.now += 1
        self.news.poll()
        return [message.event for notice_id, message in self.messages() if notice_id > before]

    def messages(self) -> list[tuple[int, Message]]:
        rows = self.rows("SELECT notice_id, message FROM notices ORDER BY notice_id")
        return [(notice_id, msgspec.json.decode(text, type=Message)) for notice_id, text in rows]

    def move(self, run_id: str, *states: RunState, cause: str = "test") -> None:
        with transaction(self.connection):
            for state in states:
                repository.move(self.connection, run_of(self.connection, run_id), state, cause=cause, now=self.now)


class _NoOutbox(Outbox):
    def poll(self, recipients: object) -> None:
        """Send nothing."""


@pytest.fixture
def home(workspace: Workspace) -> Iterator[NewsHome]:
    with closing(NewsHome(workspace)) as home:
        home.tells(f"{{to: tell, events: [{', '.join(EVENTS)}], min_severity: info}}")
        yield home


def _fail(connection: sqlite3.Connection) -> None:
    insert(
        connection, "incidents", run_id="a-1", attempt=0, at=NOW, kind="hang", summary="x", evidence="[]",
        fingerprint="f",
    )  # fmt: skip


Step = Callable[[NewsHome], None]


@pytest.mark.parametrize(
    ("states", "events"),
    [
        ((*LIVES, RunState.SUCCEEDED), ["run_succeeded", "queue_empty"]),
        (FAILS, ["run_failed", "queue_empty"]),
        ((*LIVES, RunState.STOPPING, RunState.STOPPED), ["run_stopped", "queue_empty"]),
        ((RunState.STOPPED,), ["run_stopped", "queue_empty"]),
        ((RunState.FAILED,), ["run_failed", "queue_empty"]),
        # Stopped to be started again: nothing is over.
        ((*LIVES, RunState.STOPPING, RunState.STOPPED, RunState.QUEUED), []),
        (LIVES, []),
    ],
)
def test_the_end_of_a_run(home: NewsHome, states: Sequence[RunState], events: list[str]) -> None:
    add_run(home.connection, "a-1", *states)
    assert home.turn() == events
    assert home.turn() == []


def test_a_recovery_is_told_when_the_run_is_running_again(home: NewsHome) -> None:
    add_run(home.connection, "a-1", *RECOVERS[:-1])
    _fail(home.connection)
    assert home.turn() == []
    home.move("a-1", RunState.RUNNING)
    assert home.turn() == ["run_recovered"]
    home.move("a-1", RunState.FAILED, RunState.QUEUED, *LIVES)
    assert home.turn() == [], "a person has started it again"


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (RunState.SUCCEEDED, ["run_recovered", "run_succeeded", "queue_empty"]),
        (RunState.FAILED, ["run_failed", "queue_empty"]),
    ],
)
def test_a_recovery_counts_if_its_run_did_not_fail_again_at_once(
    home: NewsHome, state: RunState, events: list[str]
) -> None:
    add_run(home.connection, "a-1", *RECOVERS, state)
    _fail(home.connection)
    assert home.turn() == events


def test_an_agent_that_died_is_followed_by_one_that_tells(home: NewsHome) -> None:
    add_run(home.connection, "a-1", *FAILS)
    home.news = home.another()
    assert home.turn() == ["run_failed", "queue_empty"]
    home.news = home.another()
    assert home.turn() == []


def test_what_was_there_before_the_first_agent_is_not_told(workspace: Workspace) -> None:
    with closing(Home(workspace)) as former:
        add_run(former.connection, "old-1", *FAILS)
    home = NewsHome(workspace)
    home.tells("to: tell")
    assert home.turn() == []


def test_a_removed_run_hides_no_other(home: NewsHome) -> None:
    add_run(home.connection, "a-1", *FAILS)
    home.turn()
    with transaction(home.connection):
        repository.delete_run(home.connection, "a-1")
    add_run(home.connection, "b-1", *FAILS)
    assert home.turn() == ["run_failed", "queue_empty"]


def test_each_gets_what_it_wants(home: NewsHome) -> None:
    home.tells("{to: ends, events: [run_succeeded]}", "to: standard")
    add_run(home.connection, "a-1", *LIVES, RunState.SUCCEEDED)
    add_run(home.connection, "b-1", *FAILS)
    home.turn()
    pending = [(owed.label, owed.content.event) for owed in notices.pending(home.connection)]
    assert pending == [("ends", "run_succeeded"), ("standard", "run_failed"), ("standard", "queue_empty")]


def test_two_entries_of_one_address_are_told_once(home: NewsHome) -> None:
    home.tells("{to: tell, events: [run_failed]}", "{to: tell, events: [run_failed, run_succeeded]}")
    add_run(home.connection, "a-1", *FAILS)
    assert home.turn() == ["run_failed"]


def test_a_run_that_asks_for_it_is_told_to_all(home: NewsHome) -> None:
    home.tells("{to: alerts, events: [alert]}")
    add_run(home.connection, "a-1", *RECOVERS, spec=replace(SPEC, notify=True))
    _fail(home.connection)
    assert home.turn() == ["run_recovered"]
    home.move("a-1", RunState.SUCCEEDED)
    assert home.turn() == ["run_succeeded"]


def test_a_queue_is_empty_when_nothing_is_left(home: NewsHome) -> None:
    add_run(home.connection, "a-1", *FAILS, now=home.now + 0.5)
    add_run(home.connection, "b-1", *LIVES, now=home.now + 0.5)
    assert home.turn() == ["run_failed"]
    home.move("b-1", RunState.SUCCEEDED)
    assert home.turn() == ["run_succeeded", "queue_empty"]
    title = home.messages()[-1][1].title
    assert "1 succeeded" in title
    assert "1 failed" in title
    add_run(home.connection, "c-1", *LIVES, RunState.SUCCEEDED, now=home.now + 0.5)
    home.turn()
    assert "1 succeeded" in home.messages()[-1][1].title
    assert "failed" not in home.messages()[-1][1].title


def test_a_study_is_told_and_not_its_trials(home: NewsHome, connection: sqlite3.Connection) -> None:
    search(home)
    study_id = connection.execute("SELECT study_id FROM studies").fetchone()[0]
    spec = replace(SPEC, study_id=study_id, trial=0)
    add_run(connection, "t-1", *FAILS, spec=spec)
    assert "run_failed" not in home.turn()
    for (run_id,) in connection.execute("SELECT run_id FROM runs WHERE ended_at IS NULL").fetchall():
        connection.execute("UPDATE runs SET state = 'stopped', ended_at = ? WHERE run_id = ?", (NOW, run_id))
    study = get_study(connection, study_id)
    assert study is not None
    move_study(connection, study, StudyState.FINISHED, cause="all trials done", actor="agent", now=home.now)
    assert home.turn() == ["study_finished", "queue_empty"]
    assert any("trial" in line and "Best" in line for line in home.messages()[-2][1].lines)


def test_an_alert_and_its_end_are_told_to_the_same(home: NewsHome) -> None:
    home.tells("to: standard", "{to: all, min_severity: info}")
    error = alerts.raise_alert(home.connection, ALERT)
    warning = alerts.raise_alert(home.connection, {**ALERT, "rule": "shm", "severity": "warning"})
    assert home.turn() == ["alert"] * 3
    home.tells("to: standard", "{to: all, min_severity: info}", "{to: later, min_severity: info}")
    for alert_id in (error, warning):
        alerts.clear_alert(home.connection, alert_id, now=home.now, why="it is back")
    assert home.turn() == ["alert"] * 3
    assert home.turn() == []
    labels = [message.label for message in notices.pending(home.connection)]
    assert labels == ["standard", "all", "all"] * 2


def test_a_silenced_alert_is_not_told(home: NewsHome) -> None:
    alerts.silence(home.connection, "disk", "host", "*", ends_at=NOW + 1000, actor="me")
    alert_id = alerts.raise_alert(home.connection, ALERT)
    assert home.turn() == []
    alerts.clear_alert(home.connection, alert_id, now=home.now, why="it is back")
    assert home.turn() == []


def test_a_lost_gpu_is_an_event_of_its_own(home: NewsHome) -> None:
    home.tells("{to: tell, events: [gpu_lost]}")
    alerts.raise_alert(home.connection, {**ALERT, "rule": "gpu_lost", "subject_kind": "gpu", "subject_id": "GPU-a"})
    alerts.raise_alert(home.connection, ALERT)
    assert home.turn() == ["gpu_lost"]


def test_a_file_with_a_mistake_changes_nothing(home: NewsHome) -> None:
    home.turn()
    home.tells("{to: tell, event: [alert]}")
    add_run(home.connection, "a-1", *FAILS)
    assert home.turn() == ["run_failed", "queue_empty"]
    (event,) = [event for event in read_events(home.connection) if event.kind == "notify_unusable"]
    assert "notify.yaml:1" in event.message


def test_news_wait_for_a_file_that_was_never_valid(home: NewsHome) -> None:
    home.tells("{to: tell, event: [alert]}")
    home.news = home.another()
    add_run(home.connection, "a-1", *FAILS)
    assert home.turn() == []
    home.tells("to: tell")
    assert home.turn() == ["run_failed", "queue_empty"]


def test_a_missing_library_is_said_at_once(home: NewsHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.agent.notify.news.find_spec", lambda _: None)
    home.tells("to: ntfy://topic")
    home.turn()
    assert [event.kind for event in read_events(home.connection)] == ["notify_unusable"]


# --- any history ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["begin", "end", "turn", "die", "remove"]), max_size=40), st.randoms())
def test_each_end_is_told_once_in_any_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rng: object
) -> None:
    home = NewsHome(locate(tmp_path_factory.mktemp("home"), {}))
    connection = home.connection
    home.tells("{to: tell, events: [run_succeeded, run_failed, run_stopped]}")
    living: list[str] = []
    ended: list[str] = []
    for number, step in enumerate([*steps, "turn"]):
        if step == "begin":
            living.append(add_run(connection, f"r-{number}", *LIVES).run_id)
        elif step == "end" and living:
            home.move(living[0], ENDS[number % 3])
            ended.append(living.pop(0))
        elif step == "turn":
            home.turn()
        elif step == "die":
            home.news = home.another()
        elif step == "remove" and ended:
            home.turn()
            repository.delete_run(connection, ended[-1])
    assert [message.run_id for _, message in home.messages()] == ended
    connection.close()
