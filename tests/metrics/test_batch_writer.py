"""A store that cannot take lines: nothing is lost, and the next try carries on."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.core.redaction import BY_LOOK, REDACTED, Redactor
from gputui.metrics.batch_writer import MAX_REJECTED
from gputui.metrics.ingest import MetricsIngest

from .conftest import RUN, Bench, line


def test_a_locked_database(bench: Bench) -> None:
    bench.begin()
    bench.steps(1, 2)
    other = sqlite3.connect(bench.folder / "gputui.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    bench.connection.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(sqlite3.OperationalError):
        bench.ingest.pump()
    assert not bench.connection.in_transaction
    other.execute("ROLLBACK")
    other.close()
    assert bench.pump().lines == 2
    assert bench.stored() == [(1, 1), (1, 2)]


def test_a_full_disk(bench: Bench) -> None:
    bench.begin()
    bench.steps(*range(20_000))
    pages = bench.connection.execute("PRAGMA page_count").fetchone()[0]
    bench.connection.execute(f"PRAGMA max_page_count = {pages + 200}")
    stored = 0
    with pytest.raises(sqlite3.OperationalError, match="full"):
        while True:
            stored += bench.ingest.pump(budget_bytes=1000).lines
    before = bench.stored()
    assert 0 < len(before) < 20_000
    assert bench.counts()[0] == len(before)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        bench.ingest.pump()
    assert bench.stored() == before
    bench.connection.execute("PRAGMA max_page_count = 1000000")
    # What was stored before the disk was full is told with the first report after it.
    while (report := bench.ingest.pump()).more or report.lines:
        stored += report.lines
    assert stored == 20_000
    assert [step for _, step in bench.stored()] == list(range(20_000))


def test_a_rotation_that_could_not_be_stored(bench: Bench) -> None:
    """The old file is not let go of before it is known that the store has moved on."""
    bench.begin()
    bench.steps(1)
    bench.pump()
    bench.steps(2)
    bench.file.unlink()
    bench.steps(3)
    bench.connection.execute("PRAGMA query_only = ON")
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError):
            # On a busy machine the time of one round may be over before anything was read.
            bench.ingest.pump(budget_seconds=60.0)
    bench.connection.execute("PRAGMA query_only = OFF")
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (1, 3)]


def test_a_million_broken_lines_fill_no_disk(bench: Bench) -> None:
    bench.begin()
    bench.append("broken\n" * 30_000 + line(1))
    bench.pump()
    assert bench.counts() == (1, 30_000)
    assert len(bench.rejected()) == MAX_REJECTED
    assert bench.connection.execute("SELECT at, length_bytes, excerpt FROM rejected_lines").fetchone()[1:] == (
        6,
        "broken",
    )


def test_nothing_new_costs_no_transaction(bench: Bench) -> None:
    bench.begin()
    bench.append(line(1) + '{"half')
    bench.pump()
    changes = bench.connection.total_changes
    bench.connection.execute("PRAGMA query_only = ON")
    for _ in range(3):
        assert bench.ingest.pump().lines == 0
    assert bench.connection.total_changes == changes


def test_secrets_in_texts_are_not_stored(bench: Bench) -> None:
    known = Redactor(["plain-secret"])
    bench.ingest = MetricsIngest(bench.connection, redactor_of=lambda run: known if run == RUN else BY_LOOK)
    bench.begin()
    bench.append(line(1, note="with plain-secret and ghp_" + "a1B2" * 9))
    bench.append('{"event": "login", "detail": [{"api_key": "abc-def"}, 1.5, "NaN"]}\n')
    bench.append(line(2, note="nothing  of the kind", loss_scale=float("nan")))
    bench.append("broken " * 28 + "plain-secret\n")
    bench.pump()
    assert bench.data() == [
        {"step": 1, "loss": 0.5, "note": f"with {REDACTED} and {REDACTED}"},
        {"event": "login", "detail": [{"api_key": REDACTED}, 1.5, "NaN"]},
        {"step": 2, "loss": 1 / 3, "note": "nothing  of the kind", "loss_scale": "NaN"},
    ]
    (excerpt,) = bench.connection.execute("SELECT excerpt FROM rejected_lines").fetchone()
    assert excerpt == ("broken " * 28 + REDACTED)[:200]
