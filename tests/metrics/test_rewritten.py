"""Files as people write them: whole at each epoch, with a column more, or cut as they are read. Each line once."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.metrics import tailer

from .conftest import RUN, Bench, line

Row = dict[str, object]


def csv_text(rows: Sequence[Row], columns: Sequence[str] = ("step", "loss")) -> str:
    target = io.StringIO()
    writer = csv.DictWriter(target, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def csv_rows(*steps: int, **values: object) -> list[Row]:
    return [{"step": step, "loss": 1 / (step + 1), **values} for step in steps]


def replace(bench: Bench, text: str) -> None:
    """Write the file whole, as ``to_csv(tmp); os.replace(tmp, path)`` does."""
    new = bench.file.with_suffix(".tmp")
    new.write_text(text)
    new.replace(bench.file)


def steps(bench: Bench) -> list[int]:
    return [step for _, step in bench.stored()]


def notes(bench: Bench) -> list[str]:
    """Reads all there is; what is to be reported of it."""
    found = []
    while True:
        report = bench.ingest.pump()
        found += [note.text for _, note in report.notes]
        if not report.more:
            return found


@pytest.fixture
def table(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, kind="csv", name="metrics.csv")
    made.begin()
    return made


def test_a_column_more_at_the_first_validation(table: Bench) -> None:
    """As Lightning's CSVLogger does: the file is written whole under the new header, and then appended to."""
    for step in range(100):
        table.file.write_text(csv_text(csv_rows(*range(step + 1)))) if step == 0 else table.append(
            f"{step},{1 / (step + 1)}\n"
        )
        table.pump()
    rows = csv_rows(*range(100))
    table.file.write_text(csv_text([*rows, {"step": 100, "val": 0.5}], ("loss", "step", "val")))
    table.pump()
    table.append("0.25,101,\n")
    table.pump()
    assert steps(table) == list(range(102))
    assert table.data()[-2:] == [{"step": 100, "val": 0.5}, {"step": 101, "loss": 0.25}]
    assert table.rejected() == []


def test_a_value_that_a_line_did_not_have_is_not_lost(table: Bench) -> None:
    table.file.write_text("step,loss\n1,0.5\n2,0.25\n")
    table.pump()
    table.file.write_text("step,loss,val\n1,0.5,\n2,0.25,0.3\n")
    table.pump()
    assert [row.get("val") for row in table.data()] == [None, None, 0.3]


@pytest.mark.parametrize(
    ("kind", "ending", "restarted"),
    [("csv", "\n", True), ("csv", "", False), ("jsonl", "\n", False), ("jsonl", "", True)],
)
def test_a_file_replaced_at_each_epoch(tmp_path: Path, kind: str, ending: str, restarted: bool) -> None:
    bench = Bench(tmp_path, kind=kind, name=f"metrics.{kind}")
    bench.begin()
    told = []
    for epoch in range(1, 61):
        lines = [line(step) for step in range(epoch)]
        text = csv_text(csv_rows(*range(epoch))) if kind == "csv" else "".join(lines)
        replace(bench, text.rstrip("\n") + ending)
        told += notes(bench)
        if restarted:
            bench.restart()
    replace(bench, text + "\n")
    told += notes(bench)
    bench.ingest.finish(RUN)
    assert steps(bench) == list(range(60))
    assert bench.counts() == (60, 0)
    assert told == []


@pytest.mark.parametrize("at", [0, 9, 300, -1])
def test_a_file_that_is_seen_while_it_is_written_again(table: Bench, at: int) -> None:
    text = csv_text(csv_rows(*range(100)))
    table.file.write_text(text)
    table.pump()
    longer = csv_text(csv_rows(*range(120)))
    table.file.write_text(longer[:at])
    assert notes(table) == []
    table.file.write_text(longer)
    assert notes(table) == []
    assert steps(table) == list(range(120))


def test_lines_taken_back_and_others_written(table: Bench) -> None:
    """A script that goes on from its checkpoint at step 50 drops the lines behind it."""
    table.file.write_text(csv_text(csv_rows(*range(100))))
    table.pump()
    table.file.write_text(csv_text(csv_rows(*range(50))))
    table.pump()
    table.append("50,7.5\n51,7.25\n")
    assert len(notes(table)) == 1
    assert steps(table) == [*range(100), 50, 51]
    table.file.write_text(csv_text(csv_rows(*range(10))) + "10,9\n")
    assert notes(table) == []
    assert steps(table)[-1] == 10
    assert len(steps(table)) == 103


def test_a_new_attempt_that_writes_the_same_lines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its own: it computed them."""
    bench.begin()
    bench.steps(*range(10))
    bench.pump()
    bench.begin(2)
    monkeypatch.setattr(tailer, "SHORT_SECONDS", 0.0)
    bench.file.write_text(line(0))
    bench.pump()
    bench.steps(1, 2)
    bench.pump()
    assert bench.stored()[10:] == [(2, 0), (2, 1), (2, 2)]


def test_a_new_attempt_that_saves_the_old_lines_again(bench: Bench) -> None:
    bench.begin()
    bench.steps(*range(10))
    bench.pump()
    bench.begin(2)
    replace(bench, "".join(map(line, range(12))))
    bench.pump()
    assert bench.stored() == [(1, step) for step in range(10)] + [(2, 10), (2, 11)]


# --- lines that are in another place than before


def write(bench: Bench, how: str, numbers: Sequence[int]) -> None:
    text = csv_text(csv_rows(*numbers)) if bench.file.suffix == ".csv" else "".join(map(line, numbers))
    replace(bench, text) if how == "replaced" else bench.file.write_text(text)


@pytest.mark.parametrize(
    ("kind", "how", "restarted"),
    [("csv", "replaced", True), ("csv", "in place", False), ("jsonl", "replaced", False), ("jsonl", "in place", True)],
)
def test_a_file_that_keeps_its_last_lines(tmp_path: Path, kind: str, how: str, restarted: bool) -> None:
    bench = Bench(tmp_path, kind=kind, name=f"metrics.{kind}")
    bench.begin()
    told = []
    for step in range(60):
        write(bench, how, range(max(0, step - 19), step + 1))
        told += notes(bench)
        if restarted:
            bench.restart()
    assert steps(bench) == list(range(60))
    assert bench.counts() == (60, 0)
    assert len(told) <= 1


@pytest.mark.parametrize("restarted", [False, True], ids=["same agent", "new agent"])
def test_what_an_attempt_appends_to_a_rewritten_file_is_its_own(bench: Bench, restarted: bool) -> None:
    bench.begin()
    bench.steps(*range(10))
    bench.pump()
    write(bench, "in place", range(5, 12))
    bench.pump()
    bench.begin(2)
    bench.steps(3, 4, 11)
    bench.pump()
    if restarted:
        bench.restart()
    write(bench, "in place", [10, 11, 3, 4, 11, 12])
    bench.pump()
    assert bench.stored()[:12] == [(1, step) for step in range(12)]
    assert bench.stored()[12:] == [(2, 3), (2, 4), (2, 11), (2, 12)]


def test_a_rotated_file_is_no_copy(bench: Bench) -> None:
    bench.begin()
    bench.steps(1, 2, 3)
    bench.pump()
    bench.file.rename(bench.folder / "metrics.jsonl.1")
    bench.steps(2, 3, 4)
    bench.pump()
    assert steps(bench) == [1, 2, 3, 2, 3, 4]


def test_known_lines_whose_batch_was_not_stored_are_known_again(bench: Bench) -> None:
    bench.begin()
    bench.steps(*range(10))
    bench.pump()
    write(bench, "in place", range(5, 10))
    bench.pump()
    bench.connection.execute("CREATE TRIGGER full BEFORE INSERT ON metrics BEGIN SELECT RAISE(ROLLBACK, 'full'); END")
    write(bench, "in place", range(6, 12))
    with pytest.raises(sqlite3.IntegrityError):
        bench.pump()
    bench.connection.execute("DROP TRIGGER full")
    bench.pump()
    assert steps(bench) == list(range(12))


# --- any schedule against a model

CHANGES = ("append", "replace", "rewrite", "cut", "go back", "keep the last", "edit", "column", "half a line")


class Story:
    """A file that a script writes in many ways, each of its lines another one, and what was seen of it."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self.bench = bench
        self.kind = kind
        self.numbers = itertools.count()
        self.columns = ["step", "loss"]
        self.rows: list[Row] = []
        self.seen: set[int] = set()

    def text(self) -> str:
        if self.kind == "csv":
            return csv_text(self.rows, self.columns)
        return "".join(json.dumps(row) + "\n" for row in self.rows)

    def more(self, count: int) -> None:
        for number in itertools.islice(self.numbers, count):
            row: Row = {"step": number, "loss": number / 8}
            if len(self.columns) > 2 and number % 2:
                row[self.columns[-1]] = number / 4
            self.rows.append(row)

    def change(self, what: str, count: int, at: float) -> None:
        if what == "append":
            before = self.text() if self.rows else ""
            self.more(count)
            self.bench.append(self.text()[len(before) :])
        elif what == "half a line":
            before = self.text() if self.rows else ""
            self.more(1)
            new = self.text()[len(before) :]
            middle = int(len(new) * at)
            self.bench.append(new[:middle])
            self.bench.pump()
            self.bench.append(new[middle:])
        elif what == "cut":
            self.more(count)
            text = self.text()
            self.bench.file.write_text(text[: int(len(text) * at)])
            self.bench.pump()
            self.bench.file.write_text(text)
        else:
            if what == "go back":
                self.rows = self.rows[: int(len(self.rows) * at)]
            elif what == "keep the last":
                self.rows = self.rows[int(len(self.rows) * at) :]
            elif what == "edit" and self.rows:
                length = len(self.text())
                self.rows[int((len(self.rows) - 1) * at)]["step"] = next(self.numbers)
                if len(self.text()) == length:
                    # One of the same length far from both ends of what was read would not be noticed (docs/metrics.md).
                    self.rows[-1]["step"] = next(self.numbers)
            elif what == "column" and self.kind == "csv":
                self.columns.insert(int(len(self.columns) * at), f"c{len(self.columns)}")
                self.columns.append(self.columns.pop(self.columns.index(f"c{len(self.columns) - 1}")))
            self.more(count)
            write: Callable[[str], object] = self.bench.file.write_text
            if what == "replace":
                replace(self.bench, self.text())
            else:
                write(self.text())

    def look(self) -> None:
        self.bench.pump()
        self.seen |= {int(str(row["step"])) for row in self.rows}


stories = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.integers(1, 4), st.floats(0, 1), st.booleans(), st.booleans()), max_size=12
)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["csv", "jsonl"]), stories, st.booleans())
def test_each_line_that_was_seen_is_stored_once(
    kind: str, story: list[tuple[str, int, float, bool, bool]], restarts: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), kind=kind, name="metrics.txt", in_memory=True)
        bench.begin()
        told = Story(bench, kind)
        for what, count, at, is_seen, is_restarted in story:
            told.change(what, count, at)
            if is_seen:
                told.look()
            if restarts and is_restarted:
                bench.restart()
        told.look()
        bench.ingest.finish(RUN)
        stored = steps(bench)
        assert len(stored) == len(set(stored))
        assert told.seen <= set(stored)
        assert bench.rejected() == []
        bench.ingest.close()
        bench.connection.close()
