"""Metrics of an output that no profile describes are stored exactly once, from its first line on."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.core.redaction import Redactor
from gputui.metrics.learned_texts import LearnedTexts
from gputui.metrics.source_report import source_reports
from tests.metrics.conftest import RUN, MetricsHome
from tests.metrics.learning.forms import FORMS
from tests.metrics.learning.watching import output

BEGUN_AT = 1_600_000_000.0

STEPS = [(1, step) for step in range(5, 65, 5)]
ENDS = [(1, 20), (1, 40), (1, 60)]


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[MetricsHome]:
    home = MetricsHome(tmp_path, kind="output", name="attempts/1/output.log")
    home.file.parent.mkdir(parents=True)
    begin(home, 1)
    yield home
    home.close()


def begin(home: MetricsHome, attempt: int) -> None:
    with home.connection:
        home.ingest.begin_attempt(RUN, attempt, "output.log")


def epoch(number: int) -> list[str]:
    places = range(5, 25, 5)
    lines = [f"Epoch {number}/3 [{place}/20] loss: {1 / (number * 20 + place):.4f}\n" for place in places]
    return [*lines, f"Epoch {number} val loss {1 / number:.3f}\n"]


def stored(home: MetricsHome, name: str) -> list[tuple[int, int]]:
    rows = home.connection.execute(
        "SELECT attempt, step FROM metrics WHERE data ->> ? IS NOT NULL ORDER BY attempt, step", (f'$."{name}"',)
    )
    return rows.fetchall()


def read_in(folder: Path, text: str, *, size: int) -> list[tuple[int, str, float]]:
    """Each step with its metrics, in no order, of an output that is read in pieces of a size."""
    home = MetricsHome(folder, kind="output", name="attempts/1/output.log", in_memory=True)
    home.file.parent.mkdir(parents=True)
    begin(home, 1)
    for start in range(0, len(text), size):
        home.append(text[start : start + size])
        home.pump()
    home.ingest.finish(RUN)
    query = "SELECT step, pair.key, pair.value FROM metrics, json_each(data) AS pair ORDER BY 1, 2, 3"
    rows = home.connection.execute(query).fetchall()
    home.close()
    return rows


@pytest.mark.parametrize("restarts", [False, True])
def test_lines_before_their_form_was_known(printed: MetricsHome, *, restarts: bool) -> None:
    for line in ["Loading data\n", *epoch(1), *epoch(2), *epoch(3)]:
        printed.append(line)
        printed.pump()
        if restarts:
            printed.restart()
    printed.ingest.finish(RUN)
    assert stored(printed, "loss") == STEPS
    assert stored(printed, "val/loss") == ENDS


@pytest.mark.parametrize("read_before_the_end", [0, 1, 2])
def test_few_lines_are_enough_whenever_they_were_read(printed: MetricsHome, read_before_the_end: int) -> None:
    lines = ["step 1 loss 1.0000\n", "step 2 loss 0.5000\n"]
    printed.append("".join(lines[:read_before_the_end]))
    printed.pump()
    printed.append("".join(lines[read_before_the_end:]))
    printed.ingest.finish(RUN)
    assert stored(printed, "loss") == [(1, 1), (1, 2)]


def test_lines_that_came_while_the_database_was_locked_are_read_again(printed: MetricsHome) -> None:
    lines = epoch(1) + epoch(2) + epoch(3)
    writer = sqlite3.connect(printed.workspace.database, isolation_level=None)
    printed.connection.execute("PRAGMA busy_timeout = 1")
    for number, line in enumerate(lines):
        printed.append(line)
        if number % 2:
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError):
                printed.ingest.pump()
            writer.execute("ROLLBACK")
        printed.pump()
    printed.ingest.finish(RUN)
    writer.close()
    assert stored(printed, "loss") == STEPS
    assert stored(printed, "val/loss") == ENDS


def test_lines_keep_the_times_at_which_they_came(printed: MetricsHome) -> None:
    lines = ["Loading data\n", *epoch(1), *epoch(2), *epoch(3)]
    for second, line in enumerate(lines):
        printed.append(line)
        os.utime(printed.file, (BEGUN_AT + second, BEGUN_AT + second))
        printed.pump()
    rows = printed.connection.execute("SELECT at FROM metrics ORDER BY generation, byte_offset").fetchall()
    assert {at for (at,) in rows} == {BEGUN_AT + second for second in range(1, len(lines))}


@pytest.mark.parametrize("form", FORMS)
def test_an_output_is_read_as_one_whatever_was_known_when(tmp_path: Path, form: str) -> None:
    text = output(FORMS[form]())
    assert read_in(tmp_path / "slowly", text, size=700) == read_in(tmp_path / "at once", text, size=len(text))


def test_a_resumed_attempt_counts_as_before_although_its_output_is_read_again(printed: MetricsHome) -> None:
    """Epochs count from 0, which the second attempt does not print; its test lines are new."""
    lines = [
        f"Epoch: [{epoch}][{place}/20] Loss {1 / (epoch * 20 + place):.4f}\n" for epoch in (0, 1) for place in (5, 15)
    ]
    printed.append("".join(lines))
    printed.pump()
    printed.print_to(2)
    begin(printed, 2)
    for epoch in (1, 2, 3):
        printed.append(f"Epoch: [{epoch}][10/20] Loss 0.5{epoch}\n * Acc@1 7{epoch}.5 Acc@5 9{epoch}.25\n")
        printed.pump()
    printed.ingest.finish(RUN)
    assert stored(printed, "loss") == [(1, 5), (1, 15), (1, 25), (1, 35), (2, 30), (2, 50), (2, 70)]
    assert [step for _, step in stored(printed, "acc@1")] == [30, 50, 70]


def test_a_whole_output_at_once(printed: MetricsHome) -> None:
    printed.append("".join([*epoch(1), *epoch(2), *epoch(3)]))
    printed.pump()
    printed.ingest.finish(RUN)
    assert stored(printed, "loss") == STEPS
    assert stored(printed, "val/loss") == ENDS


def test_the_next_attempt_knows_the_forms(printed: MetricsHome) -> None:
    printed.append("".join(epoch(1)))
    printed.append("".join(epoch(2)))
    printed.ingest.finish(RUN)
    printed.print_to(2)
    begin(printed, 2)
    printed.append(epoch(3)[0])
    printed.pump()
    assert stored(printed, "loss")[-1] == (2, 45)


def test_the_report_of_an_output(printed: MetricsHome) -> None:
    printed.append("".join([*epoch(1), *epoch(2)]))
    printed.ingest.finish(RUN)
    printed.connection.execute("UPDATE runs SET attempt = 1")
    (report,) = source_reports(printed.connection, RUN)
    assert (report.names, report.lines > 0) == (("epoch", "loss", "val/loss"), True)
    assert [form.names for form in report.forms if form.names] == [("loss",), ("val/loss",)]
    begin(printed, 2)
    printed.connection.execute("UPDATE runs SET attempt = 2")
    (report,) = source_reports(printed.connection, RUN)
    assert (report.names, report.lines, len(report.forms)) == ((), 0, 2)


def test_an_output_without_metrics(printed: MetricsHome) -> None:
    printed.append("".join(f"Downloading 12.{number}/45.6 MB at 3.2 MB/s\n" for number in range(9)))
    printed.ingest.finish(RUN)
    assert printed.counts() == (0, 0)


def test_what_is_learned_is_redacted_as_it_changes() -> None:
    texts = LearnedTexts(Redactor(["hunter2"]))
    learned = {
        "shapes": ["a hunter2"],
        "learning": {"candidates": {"1": {"text": "b hunter2", "lines": 1}}},
        "lines": 1,
    }
    assert "hunter2" not in str(texts.redacted(learned))
    learned = {**learned, "learning": {"candidates": {"2": {"text": "c hunter2 d"}}, "token": "abc"}}
    assert texts.redacted(learned) == Redactor(["hunter2"]).value(learned)
