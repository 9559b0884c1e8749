"""Storage of lines: times of arrival, events, the report; and a store that cannot take them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import pytest

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.core.secret_patterns import REDACTED
from gputui.metrics.batch import EVENTS_WITH_METRICS, MAX_REJECTED
from gputui.metrics.ingest import MetricsIngest, StepOrder
from gputui.metrics.reduction import MetricLine
from gputui.store.metrics import queries, watched
from gputui.store.metrics.intake import Intake, intake, intake_words, short_of
from tests.homes import add_attempt
from tests.tables import table
from tests.texts import mentions

from .conftest import NOW, RUN, MetricsHome, line

# --- times ------------------------------------------------------------------------------------------------------------


@table(
    ("kind", "text", "age_seconds"),
    [
        ("jsonl", line(1), -5.0),
        ("csv", "step,loss\n1,0.5\n", 3600.0),
        ("hf", '{"log_history": [{"step": 1, "loss": 0.5}]}', 3600.0),
        ("stdout", "step 1: 0.5\n", 3600.0),
    ],
)
def test_a_line_without_a_time(tmp_path: Path, kind: str, text: str, age_seconds: float) -> None:
    home = MetricsHome(tmp_path, kind=kind, metrics={"patterns": [r"step (?P<step>\d+): (?P<loss>\S+)"]})
    home.begin()
    file = tmp_path / "attempts/1/output.log" if kind == "stdout" else home.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (NOW - age_seconds, NOW - age_seconds))
    home.pump()
    (point,) = queries.points_json(home.connection, RUN, ["loss"])
    assert (point["time"], point["arrived"]) == (NOW - max(0.0, age_seconds), True)
    (newest,), _ = watched.newest_lines(home.connection, RUN, {}, 10)
    assert (newest.step, newest.at) == (1, None)


@table(
    ("time", "is_time"),
    [
        (NOW - 7, True), (NOW + 3600, True), (NOW - 86_400 * 3000, True),  # another clock, an imported run
        (3600.5, False), (NOW + 2 * 86_400, False), (1.7e12, False), ("2023-11-14 22:13", False),
    ],
)  # fmt: skip
def test_times_of_lines(tmp_path: Path, time: float | str, is_time: bool) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    notes = []
    for step in (1, 2):
        home.append(line(step, time=time))
        os.utime(home.file, (NOW, NOW))
        notes += [note.kind for _, note in home.ingest.pump().notes]
    expected = [] if is_time else ["times_unknown"]
    assert notes == expected
    points = list(queries.points_json(home.connection, RUN, ["loss"]))
    assert [(point["time"], point["arrived"]) for point in points] == 2 * [(time, False) if is_time else (NOW, True)]
    assert [data["time" if is_time else "time_"] for data in home.data()] == [time] * 2
    lines, _ = watched.newest_lines(home.connection, RUN, {}, 10)
    assert [line.at for line in lines] == [time if is_time else None] * 2


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_report_names_the_attempts_with_new_lines(home: MetricsHome) -> None:
    home.begin()
    home.append(line(5) + line(9, rank=0) + line(9, rank=1) + line(7) + "junk\n")
    report = home.ingest.pump()
    assert (report.lines, report.rejected, report.progress) == (4, 1, {(RUN, 1)})
    assert home.ingest.pump().progress == set()


def test_a_logger_that_names_each_message_event(home: MetricsHome) -> None:
    """structlog's JSON lines are steps like any other, so that a NaN is seen."""
    home.begin()
    home.append('{"step": 0, "event": "start", "total_steps": 300}\n')
    home.append('{"event": "train", "level": "info", "step": 1, "loss": 0.5}\n')
    home.append('{"event": "train", "level": "info", "step": 2, "loss": NaN}\n')
    home.append('{"event": "checkpoint", "step": 2, "seconds": 1.5, "bytes": 7}\n')
    home.append('{"event": "validation", "step": 2, "val/loss": 0.5}\n')
    home.append('{"event": "epoch_end", "step": 2, "epoch": 1, "seconds": 60}\n')
    home.pump()
    lines, _ = watched.newest_lines(home.connection, RUN, {}, 10)
    assert [line.step for line in lines if line.event is None and "loss" in line.values] == [1, 2]
    assert home.data()[1] == {"event_": "train", "level": "info", "step": 1, "loss": 0.5}


def test_the_trainers_events_are_no_steps() -> None:
    text = (Path(__file__).parents[2] / "docs/trainer.md").read_text()
    rows = text.split("event | when | fields")[1].split("\n\n")[0]
    assert set(re.findall(r"^`(\w+)` \|", rows, re.MULTILINE)) == EVENTS_WITH_METRICS


@table(
    ("steps", "attempts", "places"),
    [
        ([0, 2, 14, 0, 2, 14, 0, 2, 14, 0, 2], [], [6]),
        ([1, 2, 3, 1, 2, 3, 1], [], [6]),
        (range(100), [], []),
        ([0, 10, 10, 20, 10, 20, 30], [], []),  # a validation that is logged late
        ([0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [], []),  # once back to the beginning
        ([100, 110, 120, 105, 110, 120, 107, 130], [], []),  # rollbacks of the script's own
        ([0, 0, 0, 1, 0, 1, 0, 1], [], []),  # two threads that log the same step
        ([0, 1, 2, 0, 1, 2, 0, 1, 2], [1, 1, 1, 2, 2, 2, 3, 3, 3], []),
    ],
)
def test_steps_that_start_again_in_each_epoch(steps: list[int], attempts: list[int], places: list[int]) -> None:
    order = StepOrder()
    numbers = attempts or [1] * len(steps)
    lines = [MetricLine(0, place, numbers[place], step=step, at=None, values={}) for place, step in enumerate(steps)]
    assert [place for place, added in enumerate(lines) if order.add([added])] == places


def test_the_report_tells_of_them_once(home: MetricsHome) -> None:
    home.begin()
    notes = []
    for step in [*range(4)] * 5:
        home.append(line(step))
        notes += home.ingest.pump().notes
    assert [note.kind for _, note in notes] == ["steps_restarted"]


# --- lines that do not count ------------------------------------------------------------------------------------------


@table(
    ("text", "said"),
    [
        ('{"iter": 1, "loss": 2.5}\n', ("1 of 1", "(no step)", '{"iter": 1, "loss": 2.5}')),
        ('{"iter": 1}\n{"iter": 2}\n', ("2 of 2", "(no step)", '{"iter": 2}')),
        (line(1) + "garbage " * 40 + "\n" + line(2), ("1 of 3", "(not a JSON object)", "garbage ", "…")),
    ],
)
def test_what_a_person_is_told_of_bad_lines(tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    home = MetricsHome(tmp_path)
    assert intake(home.connection, RUN) == Intake()
    assert intake_words(Intake()) is None
    home.begin()
    home.append(text)
    home.pump()
    intake_text = intake_words(intake(home.connection, RUN))
    assert mentions(intake_text, *said)
    assert len(intake_text or "") < 140


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    patterns = [r"step (?P<step>\d+) loss (?P<loss>\S+)"]
    home = MetricsHome(tmp_path, kind="stdout", name="attempts/1/output.log", metrics={"patterns": patterns})
    home.file.parent.mkdir(parents=True)
    home.begin()
    said = []
    states = (
        ("", "running"), ("iter 1 loss 2.5\n", "running"), ("", "failed"), ("", "stopped"), ("", "succeeded"),
        ("step 2 loss 2.5\n", "succeeded"),
    )  # fmt: skip
    for text, state in states:
        home.connection.execute("UPDATE runs SET state = 'running'")
        home.append(text)
        home.pump()
        # A script that begins prints something else first, and one that fails then comes to nothing else.
        home.connection.execute("UPDATE runs SET state = ?", (state,))
        said.append(intake_words(intake(home.connection, RUN)) is not None)
    assert said == [False, False, False, False, True, False]


@table(
    ("last", "step", "short_of_steps"),
    [
        ({"step": 4, "loss": 1.0}, 4, (4, 100)),
        ({"step": 90, "loss": 1.0}, 90, None),
        ({"step": 90, "event": "stop"}, 90, (90, 100)),
        ({"step": 4, "event": "end"}, 4, None),
        ({"step": 4, "loss": 1.0}, None, None),
    ],
)
def test_an_attempt_that_ended_far_below_its_steps(
    tmp_path: Path, last: dict[str, object], step: int | None, short_of_steps: tuple[int, int] | None
) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    home.append('{"step": 0, "event": "start", "total_steps": 100}\n' + json.dumps(last) + "\n")
    home.pump()
    add_attempt(home.connection, RUN, last_step=step)
    assert short_of(home.connection, RUN, 1) == short_of_steps


def test_learned_steps_do_not_say_that_an_attempt_ended_early(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    home.append('{"step": 4, "loss": 1.0, "total_steps": 100}\n')
    home.pump()
    add_attempt(home.connection, RUN, last_step=4)
    assert short_of(home.connection, RUN, 1) == (4, 100)
    home.ingest.open_source(RUN, str(tmp_path), "stdout")
    assert short_of(home.connection, RUN, 1) is None


def test_what_a_person_is_told_of_an_early_end(home: MetricsHome) -> None:
    add_attempt(home.connection, RUN, exit='{"short_of": [4, 100]}')
    home.connection.execute("UPDATE runs SET attempt = 1")
    assert intake(home.connection, RUN).short_of == (4, 100)
    assert mentions(intake_words(intake(home.connection, RUN)), "step 4 of 100")


def test_a_million_broken_lines_fill_no_disk(home: MetricsHome) -> None:
    home.begin()
    home.append("broken\n" * 30_000 + line(1))
    home.pump()
    assert home.counts() == (1, 30_000)
    assert len(home.rejected()) == MAX_REJECTED


def test_secrets_in_texts_are_not_stored(home: MetricsHome) -> None:
    redactor = Redactor(["plain-secret"])
    home.ingest = MetricsIngest(home.connection, redactor_of=lambda run: redactor if run == RUN else BY_LOOK)
    home.begin()
    home.append(line(1, note="with plain-secret and ghp_" + "a1B2" * 9))
    home.append('{"event": "login", "detail": [{"api_key": "abc-def"}, 1.5, "NaN"]}\n')
    home.append(line(2, note="nothing  of the kind", loss_scale=float("nan")))
    home.append("broken " * 28 + "plain-secret\n")
    home.pump()
    assert home.data() == [
        {"step": 1, "loss": 0.5, "note": f"with {REDACTED} and {REDACTED}"},
        {"event": "login", "detail": [{"api_key": REDACTED}, 1.5, "NaN"]},
        {"step": 2, "loss": 1 / 3, "note": "nothing  of the kind", "loss_scale": "NaN"},
    ]
    (excerpt,) = home.connection.execute("SELECT excerpt FROM rejected_lines").fetchone()
    assert excerpt == ("broken " * 28 + REDACTED)[:200]


# --- a store that cannot take lines -----------------------------------------------------------------------------------


def test_a_locked_database(home: MetricsHome) -> None:
    home.begin()
    home.steps(1, 2)
    writer = sqlite3.connect(home.workspace.database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    home.connection.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(sqlite3.OperationalError):
        home.ingest.pump()
    assert not home.connection.in_transaction
    writer.execute("ROLLBACK")
    writer.close()
    assert home.pump().lines == 2
    assert home.stored() == [(1, 1), (1, 2)]


def test_a_full_disk(home: MetricsHome) -> None:
    home.begin()
    home.steps(*range(20_000))
    pages = home.connection.execute("PRAGMA page_count").fetchone()[0]
    home.connection.execute(f"PRAGMA max_page_count = {pages + 200}")
    stored = 0
    with pytest.raises(sqlite3.OperationalError, match="full"):
        while True:
            stored += home.ingest.pump(0.0001).lines
    before = home.stored()
    assert 0 < len(before) < 20_000
    assert home.counts()[0] == len(before)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        home.ingest.pump()
    assert home.stored() == before
    home.connection.execute("PRAGMA max_page_count = 1000000")
    # What was stored before the disk was full is told with the first report after it.
    while (report := home.ingest.pump()).more or report.lines:
        stored += report.lines
    assert stored == 20_000
    assert [step for _, step in home.stored()] == list(range(20_000))


def test_nothing_new_costs_no_transaction(home: MetricsHome) -> None:
    home.begin()
    home.append(line(1) + '{"half')
    home.pump()
    changes = home.connection.total_changes
    home.connection.execute("PRAGMA query_only = ON")
    for _ in range(3):
        assert home.ingest.pump().lines == 0
    assert home.connection.total_changes == changes
