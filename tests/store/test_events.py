"""Events: what is asked of them later is asked by kind and key, and an old home's sentences get both."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gputui.store.database import migrations
from gputui.store.events import KINDS, SINK_KINDS, add_event, has_event, last_kind
from gputui.store.run_history import read_incidents
from tests.stores import open_store

NO_KIND = (None, None)
OLD = {
    "sink csv: /x: No space left on device; the run goes on, and this is tried again": ("sink_failed", "csv"),
    "sink csv: is written again; nothing is missing": ("sink_recovered", "csv"),
    "sink mlflow: is not complete: no answer; given up until the next agent, or gputui export a-1": (
        "sink_incomplete", "mlflow",
    ),
    "process 4242 is still alive, though its attempt is over; gputui orphans --kill ends it": ("orphan", "4242"),
    "process 17 cannot be killed (stuck in the kernel: a hung driver is likely)": ("process_unkillable", None),
    "the last logout ends the agent and its runs, because this user does not linger": ("logout_ends_agent", None),
    "cannot start: no room; trying again": ("cannot_start", None),
    "/r/metrics.jsonl was rewritten; it is read from the first line that is another": (
        "metrics_rewritten", "/r/metrics.jsonl",
    ),
    "/r/m was replaced while nobody was reading; what was unread in it is gone": ("metrics_lost", "/r/m"),
    "/r/m was replaced; the new one is read from the first line that is another": ("metrics_replaced", "/r/m"),
    "metrics cannot be read: [Errno 13] Permission denied: '/r/m'": (
        "metrics_unreadable", "[Errno 13] Permission denied: '/r/m'",
    ),
    "restart by me from the start": ("requeued", "restart"),
    "rank 1 ran out of memory": ("incident", "cuda_oom"),
    "a smaller batch, then again": ("decision", "retry"),
    "a sentence that nobody knows": NO_KIND,
    "the sink csv: is a word in the middle": NO_KIND,
}  # fmt: skip


def test_the_sentences_of_an_old_home_get_their_kinds(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        for number, script in migrations():
            if number < 30:
                old.executescript(f"{script}\nPRAGMA user_version = {number};")
        old.execute(
            "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
            "VALUES ('a-1', 1, 'a', 'a', 'failed', '{}', '{}', 0)"
        )
        old.execute(
            "INSERT INTO attempts (run_id, number, state, gpus, params, launch, created_at) "
            "VALUES ('a-1', 1, 'failed', '[]', '{}', '{}', 0)"
        )
        old.execute(
            "INSERT INTO incidents (incident_id, run_id, attempt, at, kind, summary, fingerprint, evidence) "
            "VALUES (1, 'a-1', 1, 5, 'cuda_oom', 'rank 1 ran out of memory', 'f', ?)",
            (json.dumps(["exit: torchrun ended", "kernel: killed it", "the launcher: saw it", "rank 1: kernel: x"]),),
        )
        old.execute(
            "INSERT INTO decisions (incident_id, run_id, attempt, at, rung, verdict, actions, params, reason) "
            "VALUES (1, 'a-1', 1, 5, 0, 'retry', '[]', '{}', 'a smaller batch, then again')"
        )
        for text in OLD:
            old.execute(
                "INSERT INTO events (at, severity, run_id, attempt, message) VALUES (5, 'info', 'a-1', 1, ?)", (text,)
            )
        old.commit()
    with closing(open_store(path)) as connection:
        rows = connection.execute("SELECT message, kind, key FROM events").fetchall()
        assert {message: (kind, key) for message, kind, key in rows} == OLD
        assert {kind for _, kind, _ in rows if kind is not None} <= KINDS
        assert last_kind(connection, "a-1", SINK_KINDS, "csv") == ("sink_recovered", 5.0)
        assert has_event(connection, "orphan", run_id="a-1", key="4242")
        (incident,) = read_incidents(connection, "a-1")
        assert incident.witnesses == ("exit", "kernel", "launcher", "finding")


@pytest.mark.parametrize("run_id", ["a-1", None])
def test_an_event_is_found_by_run_kind_and_key_alone(tmp_path: Path, run_id: str | None) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        add_event(connection, "orphan", "process 5 is alive", now=1.0, key="5", run_id=run_id)
        assert has_event(connection, "orphan", run_id=run_id, key="5")
        for kind, run, key in (
            ("orphan", run_id, "6"), ("orphan", run_id, None), ("orphan", "b-1", "5"), ("log_trimmed", run_id, "5"),
        ):  # fmt: skip
            assert not has_event(connection, kind, run_id=run, key=key)


def test_the_newest_kind_counts(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        for at, kind, key in ((1.0, "sink_failed", "csv"), (2.0, "sink_recovered", "csv"), (3.0, "sink_failed", "x")):
            add_event(connection, kind, "a sentence", now=at, key=key, run_id="a-1")
        add_event(connection, "attempt_started", "sink csv: a sentence", now=4.0, run_id="a-1")
        assert last_kind(connection, "a-1", SINK_KINDS, "csv") == ("sink_recovered", 2.0)
        assert last_kind(connection, "a-1", SINK_KINDS) == ("sink_failed", 3.0)
        assert last_kind(connection, "a-2", SINK_KINDS) is None


def test_secrets_and_what_is_not_utf_8_are_not_stored(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        secret = "https://me:hunter2hunter2@host/x"
        add_event(connection, "log_trimmed", f"{secret} \udcff", now=1.0, key=f"{secret}\udcff")
        assert has_event(connection, "log_trimmed", key=f"{secret}\udcff")
        (row,) = connection.execute("SELECT message, key FROM events")
        assert not any("hunter2" in text for text in row)
