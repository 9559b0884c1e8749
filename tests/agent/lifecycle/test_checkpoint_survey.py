"""The agent's side of the ledger: what living attempts write, what is pruned, what changed since it was chosen, and
homes that are older than the ledger."""

from __future__ import annotations

import hashlib
import io
import os
import selectors
import sqlite3
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent import slices
from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.active_run import ActiveRuns, LiveAttempt, PostmortemTask
from gputui.agent.lifecycle.checkpoint_survey import CheckpointSurveys, search_of
from gputui.agent.lifecycle.postmortem import examine
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.lifecycle.waiting import CHECKED_SECONDS, ResumeChecks
from gputui.config import Workspace
from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery import checkpoint_search
from gputui.recovery.attempt_steps import trouble_of
from gputui.recovery.checkpoint_removal import prune
from gputui.recovery.checkpoint_search import for_person, surveyed
from gputui.recovery.checkpoints import look_in
from gputui.recovery.ledger_inputs import CheckpointSearch, FoundCheckpoint
from gputui.redaction import Redactor
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors import Executors
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec, spec_of
from gputui.store import checkpoints, commands
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
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
        with transaction(self.connection) as connection:
            repository.insert_run(
                connection, run_id="a-1", sequence=1, name="a", spec=spec, params={}, now=self.begin, actor="me"
            )

    def run(self) -> Run:
        found = get_run(self.connection, "a-1")
        assert found is not None
        return found

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
        record = get_attempt(self.connection, "a-1", number)
        assert record is not None
        return record

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


def surveys(bench: Bench) -> CheckpointSurveys:
    return CheckpointSurveys(bench.context)


def turned(bench: Bench, turn: Callable[[], None], until: Callable[[], object], seconds: float) -> None:
    """Let so many seconds pass, then turn until this is so."""
    bench.clock += seconds

    def try_it() -> bool:
        turn()
        return bool(until())

    wait_until(try_it, what="the turn")


def test_what_a_living_attempt_writes_is_entered_with_its_step(bench: Bench) -> None:
    attempt, living = LiveAttempt(bench.attempt(1, 1.0, None), ExecutorProcess(None)), surveys(bench)
    at = bench.begin + 2.0 * HOUR
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    for place, (step, when) in enumerate(((7, at - 5.0), (8, at + 5.0))):
        bench.connection.execute("INSERT INTO metrics VALUES (?, 0, ?, 1, 0, ?, ?, '{}')", (source, place, step, when))
    bench.save("step_5000.pt", 2.0)
    bench.save("earlier.pt", 0.5)
    turned(bench, lambda: living.turn([attempt]), lambda: checkpoints.of_run(bench.connection, "a-1"), 11.0)
    assert {row.name: (row.origin, row.step) for row in checkpoints.of_run(bench.connection, "a-1")} == {
        "step_5000.pt": ("run", 7),
        "earlier.pt": ("foreign", None),
    }


def beside(bench: Bench, directory: Path, begun: float) -> LiveAttempt:
    """A living attempt of another run, which saves in this folder."""
    spec = replace(spec_of(bench.run()), checkpoints=CheckpointSpec(str(directory), "*.pt", ("--resume",)))
    with transaction(bench.connection) as connection:
        repository.insert_run(
            connection, run_id="b-1", sequence=2, name="b", spec=spec, params={}, now=bench.begin, actor="me"
        )
        run = get_run(connection, "b-1")
        assert run is not None
        repository.insert_attempt(
            connection, run, number=1, gpus=(), launch=Launch(("x",), {}, "/", 1.0), now=bench.begin + begun * HOUR
        )
        checkpoint_survey.attempt_begins(connection, run, 1, directory)
    record = get_attempt(bench.connection, "b-1", 1)
    assert record is not None
    return LiveAttempt(record, ExecutorProcess(None))


def test_a_folder_that_two_runs_have_by_two_paths_is_shared(bench: Bench) -> None:
    bench.attempt(1, 1.0, 9.0)
    link = bench.folder.with_name("link")
    link.symlink_to(bench.folder)
    bench.save("step_10.pt", 2.0)
    other, living = beside(bench, link, 3.0), surveys(bench)
    bench.save("step_15.pt", 4.0)

    def is_entered() -> bool:
        return bool(checkpoints.of_run(bench.connection, "b-1"))

    turned(bench, lambda: living.turn([other]), is_entered, 0.0)
    assert bench.look() == ("step_10.pt",)
    assert {row.origin for row in checkpoints.of_run(bench.connection, "b-1")} == {"foreign", "contested"}
    # A link that is away for a while changes nothing.
    link.unlink()
    turned(bench, lambda: living.turn([other]), lambda: other.checkpoint_watch and other.checkpoint_watch.job, 11.0)
    turned(bench, lambda: living.turn([other]), lambda: other.checkpoint_watch and not other.checkpoint_watch.job, 0.0)
    assert {row.run_id for row in bench.search().neighbours} == {"b-1"}


def test_a_turn_without_time_looks_into_one_folder(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [LiveAttempt(bench.attempt(1, 1.0, None), ExecutorProcess(None)), beside(bench, bench.folder, 1.0)]
    living = surveys(bench)
    monkeypatch.setattr(slices, "TURN_SECONDS", 0.0)
    bench.context.turn.begin()
    for begun in (1, 2):
        living.turn(both)
        assert sum(one.checkpoint_watch is not None for one in both) == begun


def test_what_lies_in_another_runs_folder_below_is_that_runs(workspace: Workspace) -> None:
    bench = Bench(workspace, "**/*.pt")
    bench.attempt(1, 1.0, 9.0)
    for name in ("b", "bc"):
        (bench.folder / name).mkdir()
    beside(bench, bench.folder / "b", 3.0)
    for name, at in (("step_10.pt", 4.0), ("b/step_15.pt", 5.0), ("bc/step_12.pt", 4.5)):
        bench.save(name, at)
    assert bench.look() == ("step_12.pt", "step_10.pt")
    bench.connection.close()


def test_a_line_written_in_the_kernels_tick_of_the_checkpoint_was_written_before_it(bench: Bench) -> None:
    bench.attempt(1, 1.0, 4.0)
    at = bench.begin + 2.0 * HOUR
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    for place, (step, when) in enumerate(((18, at - 0.02), (19, at + 0.004), (20, at + 0.024))):
        bench.connection.execute("INSERT INTO metrics VALUES (?, 0, ?, 1, 0, ?, ?, '{}')", (source, place, step, when))
    bench.save("step_20.pt", 2.0)
    bench.look()
    assert [row.step for row in checkpoints.of_run(bench.connection, "a-1")] == [19]


def test_newer_ones_of_others_do_not_make_those_that_are_known_go_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.attempt(1, 1.0, 2.0)
    bench.save("mine.pt", 1.5)
    assert bench.look() == ("mine.pt",)
    monkeypatch.setattr(checkpoint_search, "MOST_FOUND", 3)
    for number in range(3):
        bench.save(f"other-{number}.pt", 3.0 + number)
    monkeypatch.setattr(checkpoint_search, "look_in", lambda folder, pattern: look_in(folder, pattern, 3))
    assert bench.look() == bench.look() == ("mine.pt",)


def test_numbers_that_go_wrong_in_a_later_epoch_leave_those_of_the_epochs_before(bench: Bench) -> None:
    bench.attempt(1, 1.0, 4.0)
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    for place in range(28):
        # Two epochs of ten lines, and of the third eight: an hour is an epoch, and step 3 of the third goes wrong.
        line = (source, place, place % 10 + 1, bench.begin + (1.0 + place / 10) * HOUR)
        bench.connection.execute("INSERT INTO metrics VALUES (?, 0, ?, 1, 0, ?, ?, '{}')", line)
    for name, at in (("epoch_1.pt", 1.95), ("epoch_2.pt", 2.95), ("later.pt", 3.5)):
        bench.save(name, at)
    assert bench.look() == ("later.pt", "epoch_2.pt", "epoch_1.pt")
    search = bench.search()
    trouble = trouble_of(search, search.rows, 1, 3)
    began_at = trouble.began_at
    assert began_at is not None and abs(began_at - (bench.begin + 3.2 * HOUR)) < 5.0
    rows = ledger.attempt_ended(search.rows, search.attempts, 1, "nan_loss", 3, trouble)
    assert [row.name for row in ledger.candidates(rows, search.attempts)] == ["epoch_2.pt", "epoch_1.pt"]


def test_a_folder_that_does_not_answer_holds_up_nobody_and_is_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(checkpoint_survey, "surveyed", lambda _search: may_end.wait(30))
    attempt, living = LiveAttempt(bench.attempt(1, 1.0, None), ExecutorProcess(None)), surveys(bench)
    living.turn([attempt])
    for _ in range(3):
        bench.clock += checkpoint_survey.SURVEY_SECONDS + 1
        living.turn([attempt])
        bench.clock += checkpoint_survey.DEADLINE_SECONDS + 1
        living.turn([attempt])
    may_end.set()
    assert bench.events().count("checkpoints_unreadable") == 1


def test_names_that_contradict_the_times_are_told_once(bench: Bench) -> None:
    bench.attempt(1, 1.0, 9.0)
    bench.save("step_90.pt", 2.0)
    bench.save("step_50.pt", 3.0)
    assert bench.look() == bench.look() == ("step_50.pt", "step_90.pt")
    assert bench.events().count("checkpoints_unordered") == 1
    assert prune(bench.search(), keep=1) == []


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


def test_what_was_left_or_is_in_doubt_is_no_ground_to_prune(bench: Bench) -> None:
    bench.attempt(1, 1.0, 3.0)
    for step, at in ((10, 1.5), (20, 2.0), (30, 2.5)):
        bench.save(f"step_{step}.pt", at)
    bench.look()
    bench.attempt(2, 4.0, 5.0, "step_30.pt", steps=None)
    search = bench.search()
    with transaction(bench.connection) as connection:
        rows = ledger.attempt_ended(search.rows, search.attempts, 2, "user_exception")
        checkpoint_survey.write(connection, search, rows, 0.0)
    assert bench.look() == ("step_20.pt", "step_10.pt", "step_30.pt")
    assert [path.name for path in prune(bench.search(), keep=1)] == ["step_10.pt"]


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


def test_files_without_a_step_in_their_names_are_one_checkpoint_by_the_step_of_the_metrics(bench: Bench) -> None:
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    for place, epoch in enumerate((1, 2)):
        line = (source, place, 10 * epoch, bench.begin + (epoch + 0.9) * HOUR)
        bench.connection.execute("INSERT INTO metrics VALUES (?, 0, ?, 1, 0, ?, ?, '{}')", line)
        for rank in range(2):
            bench.save(f"epoch_{epoch}_rank{rank}.pt", epoch + 1.0 + rank / 100)
    assert pruned(bench, 1) == ["epoch_2_rank0.pt", "epoch_2_rank1.pt"]


def test_what_the_checksums_of_a_kept_checkpoint_name_is_kept(bench: Bench) -> None:
    for name, at in (("step_10.pt", 2.0), ("step_20.pt", 3.0), ("step_30.pt", 4.0)):
        bench.save(name, at)
    digest = hashlib.sha256(archive()).hexdigest()
    (bench.folder / "step_30.pt.sha256").write_text(f"{digest}  step_30.pt\n{digest}  step_10.pt\n")
    assert pruned(bench, 1) == ["step_10.pt", "step_30.pt", "step_30.pt.sha256"]


def test_a_folder_and_what_is_in_it_are_kept_and_go_together(workspace: Workspace) -> None:
    bench = Bench(workspace, "**/step_*")
    save_ranks(bench, 10, 20, 30, 40, folder="step_{}/")
    resumed = bench.folder / "step_10" / "step_10_rank0.pt"
    whole = {
        step: [f"step_{step}/", *(f"step_{step}/step_{step}_rank{rank}.pt" for rank in range(3))]
        for step in (10, 30, 40)
    }
    assert pruned(bench, 2, resumed) == [name for names in whole.values() for name in names]
    bench.connection.close()


def test_a_folder_around_a_kept_checkpoint_is_kept(workspace: Workspace) -> None:
    bench = Bench(workspace, "**/*")
    (bench.folder / "run_1").mkdir()
    for step in (10, 20):
        bench.save(f"run_1/step_{step}.pt", 1.0 + step / 10)
    os.utime(bench.folder / "run_1", (bench.begin + 3.0 * HOUR,) * 2)
    assert {"run_1/", "run_1/step_20.pt"} <= set(pruned(bench, 1))
    bench.connection.close()


def test_what_a_link_leads_to_is_kept_with_its_other_files(bench: Bench) -> None:
    save_ranks(bench, 10, 20, 30, 40)
    (bench.folder / "sub").mkdir()
    (bench.folder / "best.pt").symlink_to("step_10_rank0.pt")
    (bench.folder / "sub" / "chosen").symlink_to("../step_20_rank2.pt")
    ranks = [f"step_{step}_rank{rank}.pt" for step in (10, 20, 40) for rank in range(3)]
    assert pruned(bench, 1) == ["best.pt", *ranks, "sub/", "sub/chosen"]


def test_a_link_to_a_link_is_kept_and_one_inside_a_checkpoint_binds_nothing(workspace: Workspace) -> None:
    bench = Bench(workspace, "step_*")
    blob = workspace.run_dir("a-1") / "blob"
    blob.write_bytes(archive())
    os.utime(blob, (bench.begin + 1.5 * HOUR,) * 2)
    (bench.folder / "step_5.pt").symlink_to(blob)
    (bench.folder / "best").symlink_to("step_5.pt")
    (bench.folder / "step_10").mkdir()
    bench.save("step_10/model.pt", 2.0)
    (bench.folder / "step_10" / "latest.pt").symlink_to("model.pt")
    os.utime(bench.folder / "step_10", (bench.begin + 2.0 * HOUR,) * 2)
    bench.save("step_20.pt", 3.0)
    assert pruned(bench, 1) == ["best", "step_20.pt", "step_5.pt"]
    bench.connection.close()


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_home_that_is_older_than_the_ledger_can_be_resumed(bench: Bench) -> None:
    """Nothing was entered while these attempts lived: rolled back to step 20 after a NaN at step 40, then killed."""
    for number, begun, base in ((1, 1.0, None), (2, 4.0, "step_20.pt")):
        bench.attempt(number, begun, begun + 2.0, base, steps=60)
    bench.connection.execute("DELETE FROM checkpoints")
    bench.connection.execute("UPDATE attempts SET checkpoint_folder = NULL")
    bench.connection.execute(
        "INSERT INTO incidents (run_id, attempt, at, kind, step, summary, fingerprint, evidence) "
        "VALUES ('a-1', 1, 1.0, 'nan_loss', 40, '', '', '[]')"
    )
    for step, at in ((10, 1.5), (20, 2.0), (50, 2.5), (60, 0.5)):
        bench.save(f"step_{step}.pt", at)
    bench.save("step_30.pt", 5.0)
    choice = for_person(bench.search(), None)
    assert [info.path.name for info in choice.usable] == ["step_30.pt"]
    assert {row.name: row.origin for row in choice.rows}["step_60.pt"] == "foreign"
    assert {row.origin for row in choice.rows} == {"rebuilt", "foreign"}
    assert [row.name for row in ledger.candidates(choice.rows, bench.search().attempts)] == [
        "step_30.pt", "step_20.pt", "step_10.pt",
    ]  # fmt: skip


def test_whose_a_checkpoint_is_stays_unknown_where_folders_were_not_noted(bench: Bench) -> None:
    """Two runs had one folder at a time, and the database was lost since, or is older than the ledger."""
    spec = replace(
        spec_of(bench.run()), checkpoints=CheckpointSpec(str(bench.folder), "*.pt", ("--resume", "{checkpoint}"))
    )
    with transaction(bench.connection) as connection:
        repository.insert_run(
            connection, run_id="b-1", sequence=2, name="b", spec=spec, params={}, now=bench.begin, actor="me"
        )
    bench.attempt(1, 1.0, 9.0)
    bench.connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, ended_at) "
        "SELECT 'b-1', 1, state, params, gpus, launch, created_at + 3600, ended_at - 3600 FROM attempts"
    )
    bench.connection.execute("UPDATE attempts SET checkpoint_folder = NULL")
    bench.save("step_10.pt", 1.5)
    bench.save("step_20.pt", 5.0)
    assert bench.look() == ("step_10.pt",)
    (other,) = [row for row in bench.search().rows if row.origin == "contested"]
    assert other.name == "step_20.pt" and "b-1" in other.why


def test_a_checkpoint_stays_nobodys_when_the_run_that_may_have_written_it_is_removed(bench: Bench) -> None:
    bench.attempt(1, 1.0, 9.0)
    with transaction(bench.connection) as connection:
        repository.insert_run(
            connection, run_id="b-1", sequence=2, name="b", spec=spec_of(bench.run()), params={}, now=0.0, actor="me"
        )
    bench.connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, ended_at, checkpoint_folder) "
        "SELECT 'b-1', 1, state, params, gpus, launch, created_at + 3600, ended_at - 3600, checkpoint_folder "
        "FROM attempts"
    )
    bench.connection.execute("UPDATE runs SET state = 'stopped'")
    bench.save("step_10.pt", 1.5)
    bench.save("step_20.pt", 5.0)

    def remove(run_id: str) -> None:
        commands.submit(bench.connection, "rm", run_id, {}, "me", now=time.time())
        dispatch.answer_all(Supervisor(bench.context, selectors.DefaultSelector()))
        assert get_run(bench.connection, run_id) is None

    remove("b-1")
    assert bench.look() == ("step_10.pt",)
    remove("a-1")
    assert bench.connection.execute("SELECT * FROM former_neighbours").fetchall() == []


def test_a_removed_run_in_a_folder_below_is_remembered_too(bench: Bench) -> None:
    bench.attempt(1, 1.0, 9.0)
    connection = bench.connection
    (folder,) = connection.execute("SELECT checkpoint_folder FROM attempts").fetchone()
    with transaction(connection):
        for number, (run_id, place) in enumerate((("b-1", f"{folder}/sub"), ("c-1", f"{folder}-else")), 2):
            repository.insert_run(
                connection, run_id=run_id, sequence=number, name=run_id, spec=spec_of(bench.run()), params={}, now=0.0,
                actor="me",
            )  # fmt: skip
            connection.execute(
                "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, ended_at, "
                "checkpoint_folder) SELECT ?, 1, state, params, gpus, launch, created_at + 1, ended_at - 1, ? "
                "FROM attempts WHERE run_id = 'a-1'",
                (run_id, place),
            )
        for run_id in ("b-1", "c-1"):
            checkpoints.forget_run(connection, run_id)
            connection.execute("DELETE FROM attempts WHERE run_id = ?", (run_id,))
    known = checkpoints.neighbours(connection, "a-1", folder, 0.0)
    assert [(one.run_id, one.below) for one in known] == [("b-1", f"{folder}/sub")]


@pytest.mark.parametrize(
    ("pattern", "origin"),
    [("*/*.pt", "contested"), ("**/*.pt", "contested"), ("else*/*.pt", "run"), ("*.pt", "run"), ("*/*/*.pt", "run")],
)
def test_a_run_whose_pattern_reaches_into_the_folder_may_have_written_there(
    bench: Bench, pattern: str, origin: str
) -> None:
    bench.attempt(1, 1.0, 9.0)
    spec = replace(spec_of(bench.run()), checkpoints=CheckpointSpec(str(bench.folder.parent), pattern, ("--resume",)))
    with transaction(bench.connection) as connection:
        repository.insert_run(
            connection, run_id="b-1", sequence=2, name="b", spec=spec, params={}, now=bench.begin, actor="me"
        )
        connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, ended_at, "
            "checkpoint_folder) SELECT 'b-1', 1, state, params, gpus, launch, created_at, ended_at, ? FROM attempts",
            (str(bench.folder.parent),),
        )
    bench.save("step_10.pt", 2.0)
    bench.look()
    assert [(row.name, row.origin) for row in bench.search().rows] == [("step_10.pt", origin)]


def folder_of(bench: Bench, name: str, **hours: float) -> None:
    """A checkpoint that is a folder, of whose files each was written at an hour."""
    (bench.folder / name).mkdir(exist_ok=True)
    for part, hour in hours.items():
        bench.save(f"{name}/{part}.pt", hour)
    os.utime(bench.folder / name, (bench.begin + max(hours.values()) * HOUR,) * 2)


def steps_every_hour(bench: Bench, until: int) -> None:
    """Lines of the first attempt: step N half an hour after the hour N."""
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    bench.connection.execute("INSERT INTO metric_boundaries VALUES (?, 0, 0, 1)", (source,))
    for step in range(1, until + 1):
        at = bench.begin + (step + 0.5) * HOUR
        row = (source, 0, step, 1, None, step, at, f'{{"step": {step}}}')
        bench.connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


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
    steps_every_hour(bench, last_step)
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


def test_a_folder_that_lacks_files_of_those_before_it_is_passed_over(workspace: Workspace) -> None:
    bench = Bench(workspace, "step_*")
    bench.attempt(1, 1.0, 6.0)
    steps_every_hour(bench, 5)
    folder_of(bench, "step_3", model=3.6, optimizer=3.7)
    folder_of(bench, "step_5", model=5.6)
    assert bench.look() == ("step_3",)
    assert prune(bench.search(), 1) == [] and (bench.folder / "step_3").is_dir()
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
    source = bench.connection.execute(
        "INSERT INTO metric_sources (run_id, path, format) VALUES ('a-1', '/m', 'jsonl')"
    ).lastrowid
    bench.connection.execute("INSERT INTO metric_boundaries VALUES (?, 0, 0, 2)", (source,))
    for step in range(30, 51):
        at = bench.begin + 3 * HOUR + step * 60
        row = (source, 0, step, 2, None, step, at, f'{{"step": {step}}}')
        bench.connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    nan, cut = elsewhere()
    assert (nan["attempt"], nan["failed"]) == (2, False)
    assert cut == {"attempt": 3, "until": None, "failed": True, "base": None}
    assert bench.begin + 3 * HOUR + 39 * 60 < nan["until"] < bench.begin + 3 * HOUR + 40 * 60
    for state in (RunState.STARTING, RunState.STOPPED):
        move(bench.run(), state, 6.5)
    move(bench.run(), RunState.QUEUED, 7.0, "resume")
    assert [one["attempt"] for one in elsewhere()] == [2, 3]
    # Stopped before it began: it gave nothing up.
    move(bench.run(), RunState.STOPPED, 7.1)
    move(bench.run(), RunState.QUEUED, 7.2, "restart")
    assert elsewhere() == []
    move(bench.run(), RunState.STOPPED, 7.3)
    move(bench.run(), RunState.QUEUED, 7.4, "resume")
    assert [one["attempt"] for one in elsewhere()] == [2, 3]
    # What was written behind the checkpoint that a person named is not wanted.
    named = bench.workspace.run_dir("a-1") / "attempts" / "3" / "attempt.json"
    named.parent.mkdir(parents=True, exist_ok=True)
    named.write_text('{"resume_from": "/there/step_10.pt"}')
    assert [(one["attempt"], one["base"]) for one in elsewhere()] == [(3, "/there/step_10.pt")]


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


def test_a_checkpoint_that_is_as_it_was_is_begun_from(bench: Bench) -> None:
    bench.attempt(1, 1.0, 3.0)
    bench.save("step_10.pt", 2.0)
    bench.look()
    chosen(bench, "step_10.pt")
    assert decided(bench, checks(bench)) and not bench.events()


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


def test_one_that_cannot_be_looked_at_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from gputui.agent.lifecycle import waiting

    bench.attempt(1, 1.0, 3.0)
    bench.save("step_10.pt", 2.0)
    bench.look()
    chosen(bench, "step_10.pt")
    checking = checks(bench)

    def away(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(waiting, "recheck", away)
        assert not decided(bench, checking)
    assert "Stale file handle" in (bench.run().waiting_for or "")
    assert not checking.may_start(bench.run()) and not checking.runs.waiting_of("a-1").resume_check
    bench.clock += waiting.CHECKED_SECONDS
    assert decided(bench, checking)
