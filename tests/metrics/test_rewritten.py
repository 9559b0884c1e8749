"""Files as people write them: whole at each epoch, with a column more, or cut as they are read. Each value once."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.homes import add_attempt
from tests.tables import table

from .conftest import RUN, MetricsHome, line

Row = dict[str, object]

WAYS = list(itertools.product(["csv", "jsonl"], ["replaced", "in place"], [False, True]))


def csv_text(rows: Sequence[Row], columns: Sequence[str] = ("step", "loss")) -> str:
    target = io.StringIO()
    writer = csv.DictWriter(target, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def csv_rows(*steps: int, **values: object) -> list[Row]:
    return [{"step": step, "loss": 1 / (step + 1), **values} for step in steps]


def write(home: MetricsHome, how: str, content: Sequence[int] | str) -> None:
    """Write the file whole: in place, or as ``to_csv(tmp); os.replace(tmp, path)`` does."""
    if not isinstance(content, str):
        rows = csv_text(csv_rows(*content))
        content = rows if home.file.suffix == ".csv" else "".join(map(line, content))
    if how == "in place":
        home.file.write_text(content)
    else:
        new = home.file.with_suffix(".tmp")
        new.write_text(content)
        new.replace(home.file)


def steps(home: MetricsHome) -> list[int]:
    return [step for _, step in home.stored()]


@pytest.fixture
def csv_bench(tmp_path: Path) -> MetricsHome:
    bench = MetricsHome(tmp_path, kind="csv", name="metrics.csv")
    bench.begin()
    return bench


class Story:
    """A file that a script writes in many ways, each of its lines another one, and what was seen of it.

    Each change takes how many lines are added, and a share from 0 to 1 of what is there: where it happens.
    """

    def __init__(self, home: MetricsHome, kind: str) -> None:
        self.home = home
        self.kind = kind
        self.numbers = itertools.count()
        self.columns = ["step", "loss"]
        self.newest_column: str | None = None
        self.rows: list[Row] = []
        self.seen: set[int] = set()

    def append(self, count: int, _share: float) -> None:
        self.home.append(self.added(count))

    def append_half_a_line(self, _count: int, share: float) -> None:
        new = self.added(1)
        middle = int(len(new) * share)
        self.home.append(new[:middle])
        self.home.pump()
        self.home.append(new[middle:])

    def cut_short(self, count: int, share: float) -> None:
        self.added(count)
        text = self.text()
        self.home.file.write_text(text[: int(len(text) * share)])
        self.home.pump()
        self.home.file.write_text(text)

    def replace(self, count: int, _share: float) -> None:
        self.added(count)
        write(self.home, "replaced", self.text())

    def rewrite(self, count: int, _share: float) -> None:
        self.added(count)
        write(self.home, "in place", self.text())

    def go_back(self, count: int, share: float) -> None:
        self.rows = self.rows[: int(len(self.rows) * share)]
        self.rewrite(count, share)

    def keep_the_last(self, count: int, share: float) -> None:
        self.rows = self.rows[int(len(self.rows) * share) :]
        self.rewrite(count, share)

    def edit(self, count: int, share: float) -> None:
        if self.rows:
            length = len(self.text())
            self.rows[int((len(self.rows) - 1) * share)]["step"] = next(self.numbers)
            if len(self.text()) == length:
                # One of the same length far from both ends of what was read would not be noticed.
                self.rows[-1]["step"] = next(self.numbers)
        self.rewrite(count, share)

    def add_a_column(self, count: int, share: float) -> None:
        if self.kind == "csv":
            self.newest_column = f"c{len(self.columns)}"
            self.columns.insert(round(len(self.columns) * share), self.newest_column)
        self.rewrite(count, share)

    def added(self, count: int) -> str:
        """Add rows; returns what an append writes."""
        before = ""
        if self.rows:
            before = self.text()
        for number in itertools.islice(self.numbers, count):
            row: Row = {"step": number, "loss": number / 8}
            if self.newest_column is not None and number % 2:
                row[self.newest_column] = number / 4
            self.rows.append(row)
        return self.text()[len(before) :]

    def text(self) -> str:
        if self.kind == "csv":
            return csv_text(self.rows, self.columns)
        return "".join(json.dumps(row) + "\n" for row in self.rows)

    def look(self) -> None:
        self.home.pump()
        self.seen |= {int(str(row["step"])) for row in self.rows}


CHANGES = (
    Story.append, Story.replace, Story.rewrite, Story.cut_short, Story.go_back, Story.keep_the_last, Story.edit,
    Story.add_a_column, Story.append_half_a_line,
)  # fmt: skip


class Step(NamedTuple):
    """A change of a story, and whether it is looked at, and the agent restarted, afterwards."""

    change: Callable[[Story, int, float], None]
    count: int
    share: float
    is_seen: bool
    is_restarted: bool


STORIES = st.lists(
    st.builds(Step, st.sampled_from(CHANGES), st.integers(1, 4), st.floats(0, 1), st.booleans(), st.booleans()),
    max_size=12,
)


@table(
    ("kind", "how", "restarted", "line_count", "ending"),
    [(*way, line_count, ending) for way in WAYS for line_count, ending in ((60, "\n"), (60, ""), (20, "\n"))],
)
def test_a_file_written_at_each_epoch(
    tmp_path: Path, kind: str, how: str, restarted: bool, line_count: int, ending: str
) -> None:
    """Whole, or its last lines."""
    home = MetricsHome(tmp_path, kind=kind, name=f"metrics.{kind}")
    home.begin()
    for epoch in range(1, 41):
        numbers = range(max(0, epoch - line_count), epoch)
        text = csv_text(csv_rows(*numbers)) if kind == "csv" else "".join(map(line, numbers))
        write(home, how, text.rstrip("\n") + ending)
        assert home.notes() == []
        if restarted:
            home.restart()
    home.ingest.finish(RUN)
    # A number at the end of a CSV file may lack digits.
    count = 40 - (kind == "csv" and not ending)
    assert steps(home) == list(range(count))
    assert home.counts() == (count, 40 - count)
    home.connection.close()


@table(
    ("versions", "data"),
    [
        # A value that a line did not have before is not lost, and the others of its line are not repeated.
        (
            ["step,loss\n1,0.5\n2,0.25\n", "step,loss,val\n1,0.5,\n2,0.25,0.3\n"],
            [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}, {"step": 2, "val": 0.3}],
        ),
        # pandas turns a column of integers into decimals as soon as one is unknown.
        (["step,n\n1,3\n2,4\n", "n,step,val\n3.0,1,\n4.0,2,\n,3,5\n"], [
            {"step": 1, "n": 3}, {"step": 2, "n": 4}, {"step": 3, "val": 5}
        ]),
        # A value that was changed is a new one, behind the older one.
        (
            ["step,loss\n1,0.5\n2,0.25\n", "iter,accuracy,loss\n1,0.75,0.125\n"],
            [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}, {"step": 1, "accuracy": 0.75, "loss": 0.125}],
        ),
        # The others of its line are stored once.
        (
            ["step,loss,lr\n1,0.5,1\n", "step,loss,lr\n1,0.25,1\n", "step,loss,lr\n1,0.125,1\n"],
            [{"step": 1, "loss": 0.5, "lr": 1}, {"step": 1, "loss": 0.25}, {"step": 1, "loss": 0.125}],
        ),
        # Steps of each epoch, and rows that a step has twice: what is still there stays.
        (
            ["step,epoch,loss\n1,0,5\n1,1,4\n", "step,epoch,loss,val\n1,0,5,\n1,1,4,\n1,2,3,\n"],
            [{"step": 1, "epoch": epoch, "loss": 5 - epoch} for epoch in range(3)],
        ),
        (
            ["step,loss\n1,5\n1,4\n1,4\n", "step,loss,val\n1,5,\n1,4,\n1,4,\n1,3,\n1,4,\n"],
            [{"step": 1, "loss": loss} for loss in (5, 4, 4, 3, 4)],
        ),
        (["step,loss\n1,5\n1,4\n", "loss,step\n4,1\n5,1\n3,1\n"], [{"step": 1, "loss": loss} for loss in (5, 4, 3)]),
    ],
)  # fmt: skip
def test_versions_of_a_csv_file(tmp_path: Path, versions: list[str], data: list[Row]) -> None:
    home = MetricsHome(tmp_path, kind="csv", name="metrics.csv")
    home.begin()
    for text in versions:
        home.file.write_text(text)
        home.pump()
    assert home.data() == data
    assert home.counts() == (len(data), 0)
    home.connection.close()


def test_lines_taken_back_and_others_written(csv_bench: MetricsHome) -> None:
    """A script that goes on from its checkpoint at step 50 drops the lines behind it."""
    write(csv_bench, "in place", range(1500))
    csv_bench.pump()
    write(csv_bench, "in place", range(50))
    csv_bench.pump()
    csv_bench.append("50,7.5\n51,7.25\n")
    assert csv_bench.notes() == []
    assert steps(csv_bench) == [*range(1500), 50, 51]
    assert csv_bench.counts() == (1502, 0)


@pytest.mark.parametrize("restarted", [False, True], ids=["same agent", "new agent"])
def test_a_new_attempt_and_the_lines_of_the_old_one(home: MetricsHome, restarted: bool) -> None:
    """Lines that it saves again are not its own; those that it appends to a rewritten file are."""
    home.begin()
    home.steps(*range(10))
    home.pump()
    write(home, "in place", range(5, 12))
    home.pump()
    home.begin(2)
    home.steps(3, 4, 11)
    home.pump()
    if restarted:
        home.restart()
    write(home, "in place", [10, 11, 3, 4, 11, 12])
    home.pump()
    home.begin(3)
    write(home, "replaced", [10, 11, 3, 4, 11, 12, 13])
    home.pump()
    assert home.stored() == [*((1, step) for step in range(12)), (2, 3), (2, 4), (2, 11), (2, 12), (3, 13)]


def test_known_lines_whose_batch_was_not_stored_are_known_again(home: MetricsHome) -> None:
    home.begin()
    home.steps(*range(10))
    home.pump()
    write(home, "in place", range(5, 10))
    home.pump()
    home.connection.execute("CREATE TRIGGER full BEFORE INSERT ON metrics BEGIN SELECT RAISE(ROLLBACK, 'full'); END")
    write(home, "in place", range(6, 12))
    with pytest.raises(sqlite3.IntegrityError):
        home.pump()
    home.connection.execute("DROP TRIGGER full")
    home.pump()
    assert steps(home) == list(range(12))


def test_events_and_bad_lines_of_a_rewritten_file_count_once(home: MetricsHome) -> None:
    lines = ['{"event": "start", "step": 0, "total_steps": 9}\n', '{"phase": "train"}\n', "junk\n", line(0)]
    home.begin()
    home.append("".join(lines))
    home.pump()
    home.file.write_text("".join(lines[::-1]) + line(1))
    home.pump()
    assert home.counts() == (4, 1)
    assert len(home.rejected()) == 1


def test_an_epoch_that_is_no_number_identifies_no_line(home: MetricsHome) -> None:
    lines = ['{"step": 1, "epoch": [1, 2], "loss": 5}\n', '{"step": 2, "epoch": [1, 2], "loss": 4}\n']
    home.begin()
    home.append(lines[0])
    home.pump()
    home.file.write_text("".join(lines[::-1]))
    home.pump()
    assert steps(home) == [1, 2]


def test_after_a_restart_amid_a_version_no_line_is_dropped(csv_bench: MetricsHome) -> None:
    """Steps of each epoch in one file without the epoch: which of them it still has is not known any more."""
    csv_bench.file.write_text("step,loss\n1,5\n1,4\n")
    csv_bench.pump()
    csv_bench.file.write_text("step,loss,val\n1,5,\n1,4,\n")
    csv_bench.pump()
    csv_bench.restart()
    csv_bench.append("1,3,\n")
    csv_bench.pump()
    assert [row["loss"] for row in csv_bench.data()] == [5, 4, 3]


@pytest.mark.parametrize("resumed_step", [6, None])
@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_lines_that_a_resumed_script_keeps_are_not_its_own(
    home: MetricsHome, how: str, resumed_step: int | None
) -> None:
    """Also if they are all that the file has at first, and even if what follows is as before."""
    home.begin()
    home.steps(*range(10))
    home.pump()
    base = None if resumed_step is None else "step_6.pt"
    add_attempt(home.connection, RUN, 2, resumed_from=base, resumed_step=resumed_step)
    home.begin(2)
    write(home, how, range(7))
    home.pump()
    repeated = [] if resumed_step is not None else [(2, step) for step in range(7)]
    assert home.stored() == [*((1, step) for step in range(10)), *repeated]
    home.steps(7, 8)
    home.pump()
    write(home, how, range(10))
    home.pump()
    assert home.stored() == [*((1, step) for step in range(10)), *repeated, (2, 7), (2, 8), (2, 9)]


# --- any schedule against a model -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["csv", "jsonl"]), STORIES, st.booleans())
def test_each_line_that_was_seen_is_stored_once(kind: str, steps_of_story: list[Step], restarts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = MetricsHome(Path(folder), kind=kind, name="metrics.txt", in_memory=True)
        home.begin()
        story = Story(home, kind)
        for step in steps_of_story:
            step.change(story, step.count, step.share)
            if step.is_seen:
                story.look()
            if restarts and step.is_restarted:
                home.restart()
        story.look()
        home.ingest.finish(RUN)
        stored = steps(home)
        assert len(stored) == len(set(stored))
        assert story.seen <= set(stored)
        assert home.rejected() == []
