"""The agent's side of the ledger: what living attempts write, what is pruned, what changed since it was chosen."""

from __future__ import annotations

import io
import os
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.active_run import ActiveRuns, LiveAttempt, PostmortemTask
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys, search_of
from gputui.agent.lifecycle.postmortem import examine
from gputui.agent.lifecycle.waiting import CHECKED_SECONDS, ResumeChecks
from gputui.core.config import Workspace
from gputui.core.redaction import Redactor
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_search
from gputui.recovery.checkpoint_removal import prune
from gputui.recovery.checkpoint_search import for_person, surveyed
from gputui.recovery.checkpoints import look_in
from gputui.recovery.ledger_inputs import CheckpointSearch, FoundCheckpoint
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors import Executors
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.agent.conftest import add_run, attempt_of, run_of
from tests.conftest import wait_until
from tests.stores import open_store

HOUR = 3600.0


class Bench:
    """A run whose attempts lived at given hours, in a folder of its own."""

    def __init__(self, workspace: Workspace, pattern: str = "*.pt") -> None:
        self.workspace = workspace
        self.connection: sqlite3.Connection = open_store(workspace.database)
        self.clock = 0.0
        self.begin = time.time() - 100 * HOUR
        self.folder = workspace.run_dir("a-1") / "checkpoints"
        self.folder.mkdir(parents=True)
        self.context = AgentContext.of(self.connection, workspace, wake=lambda: None, monotonic=lambda: self.clock)
        self.given_up: list[str] = []
        spec = RunSpec(
            name="a", launcher="python", program=("x.py",), python="/p", workdir="/",
            metrics=(MetricsSpec("jsonl", "/m"),),
            checkpoints=CheckpointSpec("{run_dir}/checkpoints", pattern, ("--resume", "{checkpoint}")),
        )  # fmt: skip
        add_run(self.connection, spec=spec, now=self.begin)

    def run(self) -> Run:
        return run_of(self.connection)

    def attempt(
        self, number: int, begun: float, ended: float | None, base: str | None = None, *, steps: int | None = 1
    ) -> Attempt:
        """An attempt between two hours since the begin."""
        with transaction(self.connection) as connection:
            path = None if base is None else str(self.folder / base)
            repository.set_next_attempt(connection, "a-1", params={}, resume_from=path, not_before=None)
            repository.insert_attempt(
                connection, self.run(), number=number, gpus=(), launch=Launch(("x",), {}, "/", 1.0),
                now=self.begin + begun * HOUR,
            )  # fmt: skip
            checkpoint_survey.attempt_begins(connection, self.run(), number, self.folder)
            connection.execute(
                "UPDATE attempts SET ended_at = ?, first_step = ?, last_step = ? WHERE number = ?",
                (None if ended is None else self.begin + ended * HOUR, steps, steps, number),
            )
        return attempt_of(self.connection, number)

    def save(self, name: str, at: float, data: bytes | None = None) -> Path:
        """A checkpoint that was written at this hour."""
        path = self.folder / name
        path.write_bytes(archive() if data is None else data)
        os.utime(path, (self.begin + at * HOUR,) * 2)
        return path

    def search(self) -> CheckpointSearch:
        found = search_of(self.connection, self.workspace, self.run(), time.time(), executors=Executors())
        assert found is not None
        return found

    def look(self) -> tuple[str, ...]:
        """Enter what lies there; the names that may be resumed from, the best first."""
        search = self.search()
        with transaction(self.connection) as connection:
            checkpoint_survey.write(connection, search, surveyed(search), time.time())
        now = self.search()
        return tuple(row.name for row in ledger.candidates(now.rows, now.attempts))

    def events(self) -> list[str]:
        return [row[0] for row in self.connection.execute("SELECT kind FROM events ORDER BY event_id")]


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("weights", "w" * 40)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of inodes cannot be made up as those of files are."""

    def found(folder: Path, pattern: str) -> list[FoundCheckpoint]:
        return [one._replace(changed_ns=None) for one in look_in(folder, pattern)]

    monkeypatch.setattr(checkpoint_search, "look_in", found)


@pytest.fixture
def bench(workspace: Workspace) -> Iterator[Bench]:
    made = Bench(workspace)
    yield made
    made.connection.close()


# --- while an attempt lives -------------------------------------------------------------------------------------------


def lines(bench: Bench, attempt: int, times: dict[int, float]) -> None:
    """Lines of an attempt: when each step was made."""
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    bench.connection.execute("INSERT INTO metric_boundaries VALUES (?, 0, 0, ?)", (source, attempt))
    for step, at in times.items():
        row = (source, 0, step, attempt, None, step, at, f'{{"step": {step}}}')
        bench.connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def test_what_a_living_attempt_writes_is_entered_with_its_step(bench: Bench) -> None:
    attempt, living = (
        LiveAttempt(bench.attempt(1, 1.0, None), ExecutorProcess(None, Path())),
        CheckpointSurveys(bench.context),
    )
    at = bench.begin + 2.0 * HOUR
    lines(bench, 1, {7: at - 5.0, 8: at + 5.0})
    bench.save("step_5000.pt", 2.0)
    bench.save("earlier.pt", 0.5)
    bench.clock += 11.0
    wait_until(lambda: living.turn([attempt]) or checkpoints.of_run(bench.connection, "a-1"), what="the look")
    assert {row.name: (row.origin, row.step) for row in checkpoints.of_run(bench.connection, "a-1")} == {
        "step_5000.pt": ("run", 7),
        "earlier.pt": ("foreign", None),
    }


# --- pruning ----------------------------------------------------------------------------------------------------------


def test_only_what_is_older_by_the_ledger_is_pruned(bench: Bench) -> None:
    """(e): neither the number of an epoch nor that of a loss says which is old."""
    for name, at in (
        ("epoch=1-val_loss=0.93.pt", 2.0), ("epoch=2-val_loss=0.90.pt", 3.0), ("best.pt", 3.5),
        ("epoch=5-val_loss=0.40.pt", 4.0), ("epoch=9-val_loss=0.12.pt", 5.0),
    ):  # fmt: skip
        bench.save(name, at)
    bench.save("epoch=10-val_loss=0.11.pt", 6.0, b"PK\x03\x04 cut short")
    theirs = bench.save("epoch=0-val_loss=9.99.pt", 0.5)
    bench.attempt(1, 1.0, 9.0)
    bench.look()
    (bench.folder / "epoch=2-val_loss=0.90.pt.sha256").write_text("")
    assert prune(bench.search(), keep=9) == []
    (bench.folder / "epoch=2-val_loss=0.90.pt.sha256").unlink()
    kept = str(bench.folder / "epoch=1-val_loss=0.93.pt")
    removed = prune(bench.search(), keep=2, resume_from=kept)
    assert [path.name for path in removed] == ["epoch=2-val_loss=0.90.pt"] and theirs.exists()


def pruned(bench: Bench, keep: int, resume_from: Path | None = None) -> list[str]:
    """What remains of what was pruned, folders with a slash."""
    bench.attempt(1, 1.0, 9.0)
    bench.look()
    prune(bench.search(), keep, None if resume_from is None else str(resume_from))
    found = (path for path in bench.folder.rglob("*") if not path.name.startswith("."))
    return sorted(f"{path.relative_to(bench.folder)}{'/' if path.is_dir() else ''}" for path in found)


def save_ranks(bench: Bench, *steps: int, folder: str = "") -> None:
    for step in steps:
        (bench.folder / folder.format(step)).mkdir(exist_ok=True)
        for rank in range(3):
            saved = bench.save(f"{folder.format(step)}step_{step}_rank{rank}.pt", 1.0 + step / 10 + rank / 100)
        if folder:
            os.utime(saved.parent, (bench.begin + (1.0 + step / 10) * HOUR,) * 2)


def test_the_files_of_all_ranks_are_one_checkpoint(bench: Bench) -> None:
    save_ranks(bench, 10, 20, 30, 40)
    # Of the newest one a rank's file was cut short: it does not count.
    bench.save("step_40_rank1.pt", 5.01, b"PK\x03\x04 cut short")
    resumed = bench.folder / "step_10_rank1.pt"
    assert pruned(bench, 1, resumed) == [f"step_{step}_rank{rank}.pt" for step in (10, 30, 40) for rank in range(3)]


# --- by hand ----------------------------------------------------------------------------------------------------------


def folder_of(bench: Bench, name: str, **hours: float) -> None:
    """A checkpoint that is a folder, of whose files each was written at an hour."""
    (bench.folder / name).mkdir(exist_ok=True)
    for part, hour in hours.items():
        bench.save(f"{name}/{part}.pt", hour)
    os.utime(bench.folder / name, (bench.begin + max(hours.values()) * HOUR,) * 2)


@pytest.mark.parametrize(
    ("last_step", "model", "optimizer", "is_cut"),
    [
        (5, 5.6, 5.7, False),
        (5, 5.6, 3.7, True),
        # It went on after it.
        (7, 5.6, 3.7, False),
    ],
)
def test_a_folder_that_is_written_over_is_of_one_save(
    workspace: Workspace, last_step: int, model: float, optimizer: float, is_cut: bool
) -> None:
    bench = Bench(workspace, "latest")
    bench.attempt(1, 1.0, None)
    lines(bench, 1, {step: bench.begin + (step + 0.5) * HOUR for step in range(1, last_step + 1)})
    folder_of(bench, "latest", model=3.6, optimizer=3.7)
    bench.look()
    folder_of(bench, "latest", model=model, optimizer=optimizer)
    bench.connection.execute("UPDATE attempts SET ended_at = ?", (bench.begin + 9 * HOUR,))
    assert bench.look() == (() if is_cut else ("latest",))
    choice = for_person(bench.search(), None)
    assert (choice.doubted is not None) is is_cut is (not choice.usable)
    (row,) = bench.search().rows
    assert (row.verdict == "cut") is is_cut
    bench.connection.close()


def test_the_far_side_hears_whose_checkpoints_it_may_take(bench: Bench) -> None:
    """Of what a person began last; with when numbers went wrong, and who could not begin from a checkpoint."""

    def move(run: Run, state: RunState, at: float, cause: str = "") -> None:
        with transaction(bench.connection) as connection:
            repository.move(connection, run, state, cause=cause, now=bench.begin + at * HOUR)

    def elsewhere() -> list[dict[str, Any]]:
        return checkpoint_survey.attempts_to_resume(
            bench.connection, bench.workspace, replace(bench.run(), resume_from=None)
        )

    bench.attempt(1, 1.0, 2.0)
    for state in (RunState.STARTING, RunState.STOPPED, RunState.QUEUED):
        move(bench.run(), state, 2.5)
    assert elsewhere() == []
    bench.attempt(2, 3.0, 4.0, steps=50)
    bench.attempt(3, 5.0, 6.0, steps=None)
    bench.connection.execute(
        "INSERT INTO incidents (run_id, attempt, at, kind, step, summary, fingerprint, evidence) VALUES "
        "('a-1', 2, 1.0, 'nan_loss', 40, '', '', '[]'), ('a-1', 3, 1.0, 'user_exception', NULL, '', '', '[]')"
    )
    lines(bench, 2, {step: bench.begin + 3 * HOUR + step * 60 for step in range(30, 51)})
    nan, cut = elsewhere()
    assert (nan["attempt"], nan["failed"]) == (2, False)
    assert cut == {"attempt": 3, "until": None, "failed": True, "base": None}
    assert bench.begin + 3 * HOUR + 39 * 60 < nan["until"] < bench.begin + 3 * HOUR + 40 * 60


# --- a folder that is away --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "is_away"), [("empty", True), ("gone", True), ("in use", False)])
def test_the_beginning_is_not_taken_for_checkpoints_whose_folder_went_away(
    bench: Bench, tmp_path: Path, state: str, is_away: bool
) -> None:
    attempt = bench.attempt(1, 1.0, 3.0)
    bench.save("step_10.pt", 2.0)
    bench.look()
    (bench.folder / "step_10.pt").unlink()
    if state == "gone":
        bench.folder.rmdir()
    if state == "in use":
        (bench.folder / "notes.txt").touch()
    task = PostmortemTask(
        folder=tmp_path, attempt=attempt, exit_record={"code": 1}, survivors=(), launcher="python", rebooted=False,
        ended_at=bench.begin + 3 * HOUR, checkpoints=bench.search(), checkpoints_wanted=1, redactor=Redactor([]),
    )  # fmt: skip
    after_failure, by_hand = examine(task).checkpoints, for_person(bench.search(), None)
    assert after_failure is not None and after_failure.usable == by_hand.usable == ()
    assert (after_failure.unreadable is not None) is (by_hand.unreadable is not None) is is_away
    bench.folder.mkdir(exist_ok=True)
    bench.save("step_10.pt", 2.0)
    assert [info.path.name for info in for_person(bench.search(), None).usable] == ["step_10.pt"]


def test_an_attempt_waits_for_the_folder_of_its_checkpoint_to_come_back(bench: Bench) -> None:
    bench.attempt(1, 1.0, 3.0)
    bench.save("step_10.pt", 2.0)
    bench.look()
    chosen(bench, "step_10.pt")
    (bench.folder / "step_10.pt").unlink()
    checking = checks(bench)
    assert not decided(bench, checking)
    assert bench.given_up == [] and "step_10.pt" in (bench.run().waiting_for or "")
    bench.save("step_10.pt", 2.0)
    bench.clock += CHECKED_SECONDS
    assert decided(bench, checking)


# --- between the choice and the start ---------------------------------------------------------------------------------


def checks(bench: Bench) -> ResumeChecks:
    return ResumeChecks(bench.context, ActiveRuns(), lambda _run, why: bench.given_up.append(why))


def chosen(bench: Bench, name: str) -> None:
    with transaction(bench.connection) as connection:
        repository.set_next_attempt(connection, "a-1", params={}, resume_from=str(bench.folder / name), not_before=None)


def decided(bench: Bench, checking: ResumeChecks) -> bool:
    """Whether it may start, once its file was looked at."""
    first = checking.may_start(bench.run())
    if first or not checking.runs.waiting_of("a-1").resume_check:
        return first
    wait_until(checking.is_one_over, what="the look")
    return checking.may_start(bench.run())


@pytest.mark.parametrize("remains", [True, False])
def test_one_that_another_wrote_again_meanwhile_is_not_begun_from(bench: Bench, remains: bool) -> None:
    bench.attempt(1, 1.0, 3.0)
    if remains:
        bench.save("step_10.pt", 2.0)
    bench.save("last.pt", 2.5)
    bench.look()
    chosen(bench, "last.pt")
    bench.save("last.pt", 4.0)
    checking = checks(bench)
    assert not decided(bench, checking)
    if remains:
        assert bench.run().resume_from == str(bench.folder / "step_10.pt") and checking.may_start(bench.run())
        assert bench.events()[-1] == "checkpoint_replaced"
    else:
        assert len(bench.given_up) == 1 and "last.pt" in bench.given_up[0]
