"""Events: looked up by run, kind and key, and stored without secrets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gputui.store.events import SINK_KINDS, NewEvent, add_event, has_event, last_kind
from tests.homes import open_store


@pytest.mark.parametrize("run_id", ["a-1", None])
def test_an_event_is_found_by_run_kind_and_key_alone(tmp_path: Path, run_id: str | None) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        add_event(connection, NewEvent("orphan", "process 5 is alive", key="5", run_id=run_id), now=1.0)
        assert has_event(connection, "orphan", run_id=run_id, key="5")
        for kind, run, key in (
            ("orphan", run_id, "6"), ("orphan", run_id, None), ("orphan", "b-1", "5"), ("log_trimmed", run_id, "5"),
        ):  # fmt: skip
            assert not has_event(connection, kind, run_id=run, key=key)


def test_the_newest_kind_counts(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        for at, kind, key in ((1.0, "sink_failed", "csv"), (2.0, "sink_recovered", "csv"), (3.0, "sink_failed", "x")):
            add_event(connection, NewEvent(kind, "a sentence", key=key, run_id="a-1"), now=at)
        add_event(connection, NewEvent("attempt_started", "sink csv: a sentence", run_id="a-1"), now=4.0)
        assert last_kind(connection, "a-1", SINK_KINDS, "csv") == ("sink_recovered", 2.0)
        assert last_kind(connection, "a-1", SINK_KINDS) == ("sink_failed", 3.0)
        assert last_kind(connection, "a-2", SINK_KINDS) is None


def test_secrets_and_what_is_not_utf_8_are_not_stored(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        secret = "https://me:hunter2hunter2@host/x"
        add_event(connection, NewEvent("log_trimmed", f"{secret} \udcff", key=f"{secret}\udcff"), now=1.0)
        assert has_event(connection, "log_trimmed", key=f"{secret}\udcff")
        (row,) = connection.execute("SELECT message, key FROM events")
        assert not any("hunter2" in text for text in row)
