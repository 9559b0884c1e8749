"""A sink that follows a run: wherever its process is killed, the next one leaves nothing out and repeats nothing."""

from __future__ import annotations

import csv
import itertools
import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.config import Workspace
from gputui.reports.export import follower as following
from gputui.reports.export.csv_sink import CsvSink
from gputui.reports.export.follower import Follower, Target
from gputui.reports.export.formats import Format
from gputui.reports.export.memory import MemoryPlace, Remembered
from gputui.reports.export.sink import ExportError
from gputui.reports.export.subject import read_subject
from gputui.runs.process_lock import HeldElsewhereError, holder
from gputui.store.metrics.exported import ExportProgress
from gputui.store.metrics.queries import StoredLine
from tests.tui.filling import NOW, Filler


class Killed(BaseException):
    """The process is gone at this very point: nothing behind it is done."""


class Clock:
    """Time that passes only when somebody waits; what happens meanwhile is told by ``meanwhile``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.meanwhile: list[Callable[[], object]] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)
        if not self.meanwhile:
            raise Killed
        self.meanwhile.pop(0)()


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.run("net-1", "running", name="net", params={"lr": 0.5, "api_key": "verysecret"}, attempt=1)
    made.attempt("net-1", 1)
    workspace.run_dir("net-1").mkdir()
    yield made
    made.close()


def steps(filler: Filler, attempt: int, first: int, last: int, **more: float) -> None:
    filler.metrics(
        "net-1",
        attempt,
        [{"step": step, "time": NOW + step, "rank": 0, "loss": 1 / step, **more} for step in range(first, last + 1)],
    )


def end(filler: Filler, state: str = "succeeded") -> None:
    filler.connection.execute("UPDATE runs SET state = ?, ended_at = ? WHERE run_id = 'net-1'", (state, NOW + 50))
    filler.connection.execute(
        "INSERT INTO transitions (run_id, at, from_state, to_state, cause, actor) "
        "VALUES ('net-1', ?, 'running', ?, 'finished', 'agent')",
        (NOW + 50, state),
    )


def follower(filler: Filler, form: Format, target: Path | str, clock: Clock | None = None) -> Follower:
    clock = clock or Clock()
    place = Target("net-1", filler.workspace.run_dir("net-1"), form, str(target))
    return Follower(
        filler.workspace.database, place, cpu=lambda: 0.0, clock=lambda: clock.now, wait=clock.wait, wall=lambda: NOW
    )


def killed(filler: Filler, form: Format, target: Path | str) -> None:
    """Follow until there is nothing more to do for now, and die."""
    with pytest.raises(Killed):
        follower(filler, form, target).run()


def written_steps(form: Format, target: Path) -> list[tuple[int, int]]:
    """(attempt, step) of every line, as the form's own library reads it."""
    if form == "jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        return [(line["attempt"], line["step"]) for line in lines if "loss" in line]
    if form == "csv":
        with target.open(newline="") as file:
            return [(int(row["attempt"]), int(row["step"])) for row in csv.DictReader(file)]
    if form == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(target)
        return list(zip(table["attempt"].to_pylist(), table["step"].to_pylist(), strict=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(target)).Reload()
    return [(0, event.step) for event in read.Scalars("loss")] if "loss" in read.Tags()["scalars"] else []


FILES: tuple[Format, ...] = ("jsonl", "csv", "parquet", "tensorboard")


@pytest.mark.parametrize("form", FILES)
def test_a_run_as_it_grows(form: Format, filler: Filler, tmp_path: Path) -> None:
    target, clock = tmp_path / "out", Clock()
    seen: list[int] = []

    def look() -> None:
        seen.append(len(written_steps(form, target)))

    steps(filler, 1, 1, 3)
    clock.meanwhile = [look, lambda: steps(filler, 1, 4, 6)] + [lambda: None] * 40 + [look, lambda: end(filler)]
    follower(filler, form, target, clock).run()
    assert seen == [3, 6]
    assert [step for _, step in written_steps(form, target)] == [1, 2, 3, 4, 5, 6]
    # It ended by itself, and one that is started once more has nothing to do.
    before = target.read_bytes() if target.is_file() else sorted(path.name for path in target.iterdir())
    assert follower(filler, form, target).run() == 0
    assert before == (target.read_bytes() if target.is_file() else sorted(path.name for path in target.iterdir()))


def test_parquet_has_the_metrics_that_came_later(filler: Filler, tmp_path: Path) -> None:
    import pyarrow.parquet

    clock = Clock()
    clock.meanwhile = [lambda: steps(filler, 1, 1, 3, accuracy=0.5)] + [lambda: None] * 40 + [lambda: end(filler)]
    follower(filler, "parquet", tmp_path / "out", clock).run()
    table = pyarrow.parquet.read_table(tmp_path / "out")
    assert table["step"].to_pylist() == [1, 2, 3] and table["accuracy"].to_pylist() == [0.5] * 3


@pytest.mark.parametrize("form", FILES)
def test_killed_anywhere(form: Format, filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every single thing that a process leaves on the disk."""
    target, dice = tmp_path / "out", random.Random(form)
    deaths = 0

    def mortal(name: str, owner: type, before: bool) -> None:
        original = getattr(owner, name)

        def sometimes(*arguments: Any, **options: Any) -> Any:
            nonlocal deaths
            if before and dice.random() < 0.15:
                deaths += 1
                raise Killed
            done = original(*arguments, **options)
            if not before and dice.random() < 0.15:
                deaths += 1
                raise Killed
            return done

        monkeypatch.setattr(owner, name, sometimes)

    from gputui.reports.export import line_file, parquet_sink

    for before in (True, False):
        mortal("write", MemoryPlace, before)
        mortal("append", line_file.LineFile, before)
        mortal("cut", line_file.LineFile, before)
        mortal("write", parquet_sink.ParquetSink, before)
    for step in range(1, 31):
        steps(filler, 1, step, step, **({"val/loss": 1.0} if step == 12 else {}))
        killed(filler, form, target)
    end(filler)
    for _ in range(200):
        try:
            follower(filler, form, target).run()
            break
        except Killed:
            continue
    assert deaths > 10
    assert [step for _, step in written_steps(form, target)] == list(range(1, 31))


@pytest.mark.parametrize("form", ["jsonl", "csv", "tensorboard"])
def test_half_a_write_is_taken_back(form: Format, filler: Filler, tmp_path: Path) -> None:
    target = tmp_path / "out"
    steps(filler, 1, 1, 3)
    killed(filler, form, target)
    written = target if target.is_file() else max(target.iterdir())
    with written.open("ab") as file:
        file.write(b'{"run":"net-1","att' if form == "jsonl" else b"1,0,4")
    steps(filler, 1, 4, 5)
    end(filler)
    follower(filler, form, target).run()
    assert [step for _, step in written_steps(form, target)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", FILES)
def test_what_vanished_is_written_again(form: Format, filler: Filler, tmp_path: Path) -> None:
    target = tmp_path / "out"
    steps(filler, 1, 1, 3)
    killed(filler, form, target)
    for path in [target] if target.is_file() else list(target.iterdir()):
        path.unlink()
    steps(filler, 1, 4, 5)
    end(filler)
    follower(filler, form, target).run()
    assert [step for _, step in written_steps(form, target)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", FILES)
def test_a_history_that_was_lost_and_read_again(form: Format, filler: Filler, tmp_path: Path) -> None:
    target = tmp_path / "out"
    steps(filler, 1, 1, 6)
    killed(filler, form, target)
    filler.connection.execute("DELETE FROM metrics")
    filler.connection.execute("UPDATE metric_sources SET generation = 0, byte_offset = 0")
    steps(filler, 1, 1, 3)
    end(filler)
    follower(filler, form, target).run()
    assert [step for _, step in written_steps(form, target)] == [1, 2, 3]


def recover(filler: Filler) -> None:
    """Attempt 1 dies at step 5; attempt 2 goes on behind step 3 with a smaller batch."""
    steps(filler, 1, 1, 5)
    filler.incident("net-1", 1, "cuda_oom", "out of memory on rank 0", step=5, reason="halved it", seconds_ago=1)
    filler.attempt("net-1", 2, resumed_step=3, params={"batch_size": 256, "lr": 0.001})
    steps(filler, 2, 4, 7)
    end(filler)


def test_an_attempt_that_repeats_steps(filler: Filler, tmp_path: Path) -> None:
    recover(filler)
    both = [*((1, step) for step in range(1, 6)), *((2, step) for step in range(4, 8))]
    for form in ("jsonl", "csv", "parquet"):
        follower(filler, form, tmp_path / form).run()
        assert written_steps(form, tmp_path / form) == both
    # TensorBoard discards what was done again.
    follower(filler, "tensorboard", tmp_path / "board").run()
    assert [step for _, step in written_steps("tensorboard", tmp_path / "board")] == [1, 2, 3, 4, 5, 6, 7]


def test_the_story_lies_between_the_lines(filler: Filler, tmp_path: Path) -> None:
    recover(filler)
    follower(filler, "jsonl", tmp_path / "out").run()
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    events = [line.get("event", line.get("step")) for line in lines]
    assert events == [
        "gputui.run", "gputui.attempt", 1, 2, 3, 4, 5, "gputui.incident", "gputui.decision", "gputui.attempt",
        4, 5, 6, 7, "gputui.end",
    ]  # fmt: skip
    assert lines[0]["params"] == {"lr": 0.5, "api_key": "[redacted]"}
    assert lines[7]["kind"] == "cuda_oom" and lines[7]["step"] == 5
    assert lines[9]["resumed_from"] == "step_3.pt" and lines[9]["changed"] == {"batch_size": 256}
    assert lines[-1]["state"] == "succeeded"


def test_a_run_that_is_resumed_after_its_end(filler: Filler, tmp_path: Path) -> None:
    steps(filler, 1, 1, 3)
    end(filler, "failed")
    follower(filler, "jsonl", tmp_path / "out").run()
    filler.connection.execute("UPDATE runs SET state = 'running', ended_at = NULL")
    filler.attempt("net-1", 2)
    steps(filler, 2, 4, 5)
    killed(filler, "jsonl", tmp_path / "out")
    end(filler)
    follower(filler, "jsonl", tmp_path / "out").run()
    assert [step for _, step in written_steps("jsonl", tmp_path / "out")] == [1, 2, 3, 4, 5]
    states = [json.loads(line).get("state") for line in (tmp_path / "out").read_text().splitlines()]
    assert [state for state in states if state] == ["failed", "succeeded"]


def test_a_new_metric_gets_a_column(filler: Filler, tmp_path: Path) -> None:
    steps(filler, 1, 1, 2)
    killed(filler, "csv", tmp_path / "out.csv")
    steps(filler, 1, 3, 3, **{'val/"acc",\n': 0.5})
    killed(filler, "csv", tmp_path / "out.csv")
    steps(filler, 1, 4, 4)
    killed(filler, "csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row['val/"acc",\n'] for row in rows] == ["", "", "0.5", ""]
    assert [row["loss"] for row in rows] == ["1.0", "0.5", repr(1 / 3), "0.25"]
    assert [path.name for path in tmp_path.glob("*out*")] == ["out.csv"]


def test_a_target_that_is_taken_stays_as_it_is(filler: Filler, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for form in ("jsonl", "csv", "parquet", "tensorboard"):
        with pytest.raises(ExportError, match=r"exists already|is a file"):
            follower(filler, form, tmp_path / "mine").run()
    steps(filler, 1, 1, 3)
    for form in ("jsonl", "csv"):
        killed(filler, form, tmp_path / form)
        (tmp_path / form).write_text("somebody put another file here\n" * 20)
        with pytest.raises(ExportError, match="move it away"):
            follower(filler, form, tmp_path / form).run()
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "csv").read_text().startswith("somebody")


def test_a_file_that_is_moved_away_is_noticed(filler: Filler, tmp_path: Path) -> None:
    clock = Clock()
    steps(filler, 1, 1, 3)

    def move() -> None:
        (tmp_path / "out").rename(tmp_path / "kept")
        steps(filler, 1, 4, 4)

    clock.meanwhile = [move]
    with pytest.raises(ExportError, match="was moved or removed"):
        follower(filler, "jsonl", tmp_path / "out", clock).run()
    end(filler)
    follower(filler, "jsonl", tmp_path / "out").run()
    assert [step for _, step in written_steps("jsonl", tmp_path / "out")] == [1, 2, 3, 4]


def test_two_never_write_the_same_target(filler: Filler, tmp_path: Path) -> None:
    clock = Clock()
    refused: list[bool] = []

    def second() -> None:
        with pytest.raises(HeldElsewhereError):
            follower(filler, "jsonl", tmp_path / "out").run()
        refused.append(True)
        end(filler)

    clock.meanwhile = [second]
    follower(filler, "jsonl", tmp_path / "out", clock).run()
    assert refused == [True]


def test_a_run_that_is_removed_ends_its_sink(filler: Filler, tmp_path: Path) -> None:
    clock = Clock()
    steps(filler, 1, 1, 3)
    clock.meanwhile = [lambda: filler.connection.execute("DELETE FROM runs")]
    assert follower(filler, "jsonl", tmp_path / "out", clock).run() == 0


def test_it_takes_its_share_of_a_core(filler: Filler, tmp_path: Path) -> None:
    """A form that is costly to bring up to date waits longer, but not beyond the run's end."""
    clock, spent = Clock(), iter([0.0, 0.5, 0.5, 0.5])
    steps(filler, 1, 1, 3)
    made = follower(filler, "jsonl", tmp_path / "out", clock)
    made.cpu = lambda: next(spent)
    clock.meanwhile = [lambda: None] * 50 + [lambda: end(filler)]
    made.run()
    assert clock.now == pytest.approx(102.0)  # half a second is 0.2 % of 250 s


def test_catching_up_leaves_most_of_a_core(filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PIECE_LINES", 10)
    clock, spent = Clock(), itertools.count(0.0, 0.1)
    steps(filler, 1, 1, 35)
    made = follower(filler, "jsonl", tmp_path / "out", clock)
    made.cpu = lambda: next(spent)
    clock.meanwhile = [lambda: None] * 2 + [lambda: end(filler)]
    made.run()
    # Three pieces of four are followed by more; the run ends during the third, and the rest is written at once.
    assert clock.waits == pytest.approx([0.3, 0.3, 0.3])
    assert [step for _, step in written_steps("jsonl", tmp_path / "out")] == list(range(1, 36))


def test_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    place = MemoryPlace(tmp_path, "csv-1")
    place.make()
    assert place.read() is None and holder(place.lock) is None
    remembered = Remembered(NOW, ExportProgress({"/x": (0, 7)}, {"attempt": 2}, "a1"), {"rows": 3}, NOW, None)
    place.write(remembered)
    assert place.read() == remembered
    for text in ("", "[]", '{"progress": {}}', '{"progress": {"places": [], "notes": {}}, "ended_at": null}'):
        place.position.write_text(text)
        assert place.read() is None


def test_a_metric_whose_name_is_not_unicode_has_one_column(filler: Filler, tmp_path: Path) -> None:
    target, position = tmp_path / "out.csv", {"rows": 0}
    subject = replace(read_subject(filler.connection, "net-1"), metrics=("a\ud800",))
    for step in (1, 2):
        sink = CsvSink(subject, str(target), "k")
        begun = sink.begin(position)
        line = StoredLine(1, 0, step, NOW, {"a\ud800": 0.5, "b\udfff": 0.25})
        position = dict(sink.write([line], False))
        sink.finish("running", NOW)
        assert begun.is_new is (step == 1)
    rows = target.read_text().splitlines()
    assert rows == ["attempt,rank,step,time,a?,b?", f"1,0,1,{NOW},0.5,0.25", f"1,0,2,{NOW},0.5,0.25"]


def test_a_machine_with_another_name_goes_on_where_the_last_was(
    filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "board"
    for name, first in (("one", 1), ("two", 4)):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        steps(filler, 1, first, first + 2)
        killed(filler, "tensorboard", target)
    assert [step for _, step in written_steps("tensorboard", target)] == [1, 2, 3, 4, 5, 6]
    assert len(list(target.iterdir())) == 2
    stored = [event for path in target.iterdir() for event in path.read_bytes().split(b"loss")[1:]]
    assert len(stored) == 6, "nothing lies there twice"
