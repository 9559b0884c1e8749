"""A sink that follows a run: wherever its process is killed, the next one leaves nothing out and repeats nothing."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputui.reports.export import files, follow, table_sinks
from gputui.reports.export.follow import Follower
from gputui.reports.export.formats import Format
from gputui.reports.export.sink import ExportError
from gputui.runs.identity import HeldElsewhereError
from tests.homes import NOW, Home


class Killed(BaseException):
    """The process is gone at this very point: nothing behind it is done."""


class Clock:
    """Time that passes only when somebody waits; ``meanwhile`` happens then, and death at the end."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        self.now = 0.0
        self.meanwhile = list(meanwhile)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if not self.meanwhile:
            raise Killed
        self.meanwhile.pop(0)()


@pytest.fixture
def home(home: Home) -> Home:
    home.run("net-1", "running", name="net", params={"lr": 0.5, "api_key": "verysecret"}, attempt=1)
    home.attempt("net-1", 1)
    home.workspace.run_dir("net-1").mkdir()
    return home


def steps(home: Home, attempt: int, first: int, last: int, **more: float) -> None:
    lines = [{"step": step, "time": NOW + step, "rank": 0, "loss": 1 / step, **more} for step in range(first, last + 1)]
    home.metrics("net-1", attempt, lines)


def follower(home: Home, form: Format, target: Path | str, clock: Clock | None = None) -> Follower:
    clock = clock or Clock()
    return Follower(
        home.workspace, "net-1", form, str(target), cpu=lambda: 0.0, clock=lambda: clock.now, wait=clock.wait,
        wall=lambda: NOW,
    )  # fmt: skip


def killed(home: Home, form: Format, target: Path | str) -> None:
    """Follow until there is nothing more to do for now, and die."""
    with pytest.raises(Killed):
        follower(home, form, target).run()


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


def test_a_run_as_it_grows_written_by_one_only(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "out"
    histories = []

    def look() -> None:
        histories.append([step for _, step in written_steps("jsonl", target)])
        with pytest.raises(HeldElsewhereError):
            follower(home, "jsonl", target).run()

    steps(home, 1, 1, 3)
    idle = [lambda: None] * 40
    clock = Clock(look, lambda: steps(home, 1, 4, 6), *idle, look, lambda: home.end_run("net-1", "succeeded", -50))
    follower(home, "jsonl", target, clock).run()
    assert histories == [[1, 2, 3], [1, 2, 3, 4, 5, 6]]
    # The follower ended by itself, and another one has nothing left to write.
    before = target.read_bytes()
    assert follower(home, "jsonl", target).run() == 0
    assert before == target.read_bytes()


@pytest.mark.parametrize("form", FILES)
def test_killed_anywhere(form: Format, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every single thing that a process leaves on the disk."""
    target = tmp_path / "out"
    dice = random.Random(form)
    deaths = []

    def die_perhaps() -> None:
        if dice.random() < 0.15:
            deaths.append(True)
            raise Killed

    def mortal(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def sometimes(*arguments: Any) -> Any:
            die_perhaps()
            done = original(*arguments)
            die_perhaps()
            return done

        monkeypatch.setattr(owner, name, sometimes)

    for owner, name in (
        (follow, "save_cursor"), (files.LineFile, "append"), (files.LineFile, "cut"), (files.WholeFileSink, "write"),
        (table_sinks.CsvSink, "_rewrite"),
    ):  # fmt: skip
        mortal(owner, name)
    for step in range(1, 31):
        steps(home, 1, step, step, **({"val/loss": 1.0} if step == 12 else {}))
        killed(home, form, target)
    home.end_run("net-1", "succeeded", -50)
    for _ in range(200):
        try:
            follower(home, form, target).run()
            break
        except Killed:
            continue
    assert len(deaths) > 10
    assert [step for _, step in written_steps(form, target)] == list(range(1, 31))


def test_half_a_write_is_taken_back_and_what_vanished_is_written_again(home: Home, tmp_path: Path) -> None:
    steps(home, 1, 1, 3)
    for form in FILES:
        for what in ("torn", "gone"):
            killed(home, form, tmp_path / f"{form}-{what}")
        gone = tmp_path / f"{form}-gone"
        for path in [gone] if gone.is_file() else list(gone.iterdir()):
            path.unlink()
        torn = tmp_path / f"{form}-torn"
        if form != "parquet":
            with (torn if torn.is_file() else max(torn.iterdir())).open("ab") as file:
                file.write(b'{"run":"net-1","att' if form == "jsonl" else b"1,0,4")
    steps(home, 1, 4, 5)
    home.end_run("net-1", "succeeded", -50)
    for path in sorted(tmp_path.glob("*-[tg]*")):
        form = next(form for form in FILES if path.name.startswith(form))
        follower(home, form, path).run()
        assert [step for _, step in written_steps(form, path)] == [1, 2, 3, 4, 5], path.name


def test_an_attempt_that_repeats_steps_and_the_story_between(home: Home, tmp_path: Path) -> None:
    """Attempt 1 dies at step 5; attempt 2 goes on behind step 3 with a smaller batch."""
    steps(home, 1, 1, 5)
    home.incident("net-1", 1, "cuda_oom", "out of memory on rank 0", step=5, reason="halved it", seconds_ago=1)
    home.attempt("net-1", 2, resumed_step=3, params={"batch_size": 256, "lr": 0.5})
    steps(home, 2, 4, 7)
    home.end_run("net-1", "succeeded", -50)
    doubled = [*((1, step) for step in range(1, 6)), *((2, step) for step in range(4, 8))]
    for form in FILES:
        follower(home, form, tmp_path / form).run()
        # TensorBoard's files drop the steps that a later attempt repeats.
        once = [(0, step) for step in range(1, 8)]
        expected = once if form == "tensorboard" else doubled
        assert written_steps(form, tmp_path / form) == expected
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    assert [line.get("event", line.get("step")) for line in lines] == [
        "gputui.run", "gputui.attempt", 1, 2, 3, 4, 5, "gputui.incident", "gputui.decision", "gputui.attempt",
        4, 5, 6, 7, "gputui.end",
    ]  # fmt: skip
    assert lines[0]["params"] == {"lr": 0.5, "api_key": "[redacted]"}
    assert lines[7]["kind"] == "cuda_oom"
    assert lines[7]["step"] == 5
    assert lines[9]["resumed_from"] == "step_3.pt"
    assert lines[9]["changed"] == {"batch_size": 256}
    assert lines[-1]["state"] == "succeeded"


def test_a_lost_database_leaves_the_run_s_own_folder_to_its_sink(home: Home) -> None:
    target = home.workspace.run_dir("net-1") / "sinks" / "metrics.csv"
    steps(home, 1, 1, 3)
    killed(home, "csv", target)
    home.connection.execute("DELETE FROM sink_cursors")
    steps(home, 1, 4, 4)
    home.end_run("net-1", "succeeded", -50)
    follower(home, "csv", target).run()
    assert [step for _, step in written_steps("csv", target)] == [1, 2, 3, 4]


def test_a_target_that_is_taken_stays_as_it_is(home: Home, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for form in FILES:
        with pytest.raises(ExportError, match=r"exists already|is a file"):
            follower(home, form, tmp_path / "mine").run()
    steps(home, 1, 1, 3)
    for form in FILES[:2]:
        killed(home, form, tmp_path / form)
        (tmp_path / form).write_text("somebody put another file here\n" * 20)
        with pytest.raises(ExportError, match="move it away"):
            follower(home, form, tmp_path / form).run()
        assert (tmp_path / form).read_text().startswith("somebody")
    assert (tmp_path / "mine").read_text() == "mine"
