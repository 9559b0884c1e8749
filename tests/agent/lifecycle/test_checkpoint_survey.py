"""The agent's side of the ledger: what it sees before, during and after attempts, what is pruned, what is read back."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.agent_lock import AgentLock
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.checkpoint_survey import TWO_HOMES, scan, search_now
from gputui.agent.lifecycle.execution import examine
from gputui.agent.lifecycle.live_attempt import PostmortemTask
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.start_conditions import check_before_start
from gputui.core.config import Workspace, locate
from gputui.core.redaction import Redactor
from gputui.recovery.checkpoints import ledger, resumable
from gputui.recovery.checkpoints.choices import choose, for_person
from gputui.recovery.checkpoints.removal import Keep, prune
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.recovery.policies import POLICIES
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.identity import identify
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.conftest import wait_until
from tests.homes import SPEC, add_run, attempt_of, open_store, run_of
from tests.tables import table
from tests.texts import mentions

BEGIN = 1_700_000_000.0
FALSE_CLOCKS = [0.0, 3600.0, -7200.0]


class Bench:
    """A run and its checkpoint folder. Steps take a second of a clock that the test moves."""

    def __init__(self, workspace: Workspace, pattern: str = "*") -> None:
        self.workspace = workspace
        self.connection: sqlite3.Connection = open_store(workspace.database)
        self.clock, self.now, self.saved, self.shift = 0.0, BEGIN, 0, 0.0
        self.folder = workspace.run_dir("a-1") / "checkpoints"
        self.folder.mkdir(parents=True)
        self.context = AgentContext.of(
            self.connection, workspace, wake=lambda: None, monotonic=lambda: self.clock, now=lambda: self.now
        )
        spec = RunSpec(
            name="a", launcher="python", program=("x.py",), python="/p", workdir="/",
            metrics=(MetricsSpec("jsonl", "/m"),), loss="loss",
            checkpoints=CheckpointSpec("{run_dir}/checkpoints", pattern, ("--resume", "{checkpoint}")),
        )  # fmt: skip
        add_run(self.connection, spec=spec, now=self.now)
        self.connection.execute(
            "INSERT INTO metric_sources (source_id, run_id, path, format) VALUES (1, 'a-1', '/m', 'jsonl')"
        )

    def run(self) -> Run:
        return run_of(self.connection)

    def own(self, number: int) -> Path:
        folder = self.workspace.run_dir("a-1") / "attempts" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def begin(self, number: int) -> None:
        """An attempt begins, after a scan."""
        self.now += 10.0
        self.scan()
        with transaction(self.connection) as connection:
            repository.set_next_attempt(connection, "a-1", params={}, resume_from=None, not_before=None)
            launch = Launch(("x",), {}, "/", 1.0)
            repository.insert_attempt(connection, self.run(), number=number, gpus=(), launch=launch, now=self.now)
            checkpoint_survey.attempt_begins(connection, self.run(), number, self.folder, self.own(number))
            connection.execute(
                "INSERT INTO metric_boundaries SELECT 1, 0, count(*), ? FROM metrics WHERE source_id = 1", (number,)
            )

    def step(self, *steps: int, nan_from: int = 1 << 60, is_timed: bool = True) -> None:
        for step in steps:
            self.now += 1.0
            stamp = {"time": self.now} if is_timed else {}
            data = json.dumps({"step": step, **stamp, "loss": 1.0 if step < nan_from else "NaN"})
            self.connection.execute(
                "INSERT INTO metrics SELECT 1, 0, count(*), ?, NULL, ?, ?, ? FROM metrics WHERE source_id = 1",
                (self.run().attempt, step, self.now, data),
            )
            self.connection.execute("UPDATE attempts SET last_step = ? WHERE number = ?", (step, self.run().attempt))

    def save(self, name: str, data: bytes | None = None) -> Path:
        """A checkpoint with weights of its own, dated by a clock that may be false."""
        self.saved += 1
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(archive(f"{self.saved:09}") if data is None else data)
        os.utime(path, (self.now + self.shift,) * 2)
        return path

    def search(self, ended: bool = False) -> CheckpointSearch:
        found = search_now(self.context, self.run(), self.now if ended else None)
        assert found is not None
        return found

    def scan(self) -> list[str]:
        """Scan the folder; the names that may be resumed from, the best first."""
        search = self.search()
        seen = scan(search, self.now)
        with transaction(self.connection) as connection:
            if search.writer is not None:
                checkpoints.note_scan(connection, "a-1", search.writer, str(self.folder), self.now)
            checkpoint_survey.write_ledger(connection, search, seen.rows)
        return self.usable()

    def end(self, kind: str | None = "killed") -> list[str]:
        """The newest attempt ends; the names that may be resumed from."""
        self.now += 1.0
        search = self.search(ended=True)
        number = search.attempts[-1].number
        rows = ledger.attempt_ended(surveyed(search, lambda: self.now), search.attempts, number, kind)
        with transaction(self.connection) as connection:
            repository.end_attempt(connection, "a-1", number, state="failed", ended_at=self.now, exit_record={})
            checkpoint_survey.attempt_ended(connection, search, rows, self.own(number), is_seen=True, now=self.now)
        return self.usable()

    def usable(self) -> list[str]:
        search = self.search()
        return [row.name for row in resumable.candidates(search.rows, search.attempts)]

    def rows(self) -> dict[str, CheckpointRow]:
        return {row.name: row for row in checkpoints.of_run(self.connection, "a-1")}

    def taken(self) -> list[str]:
        return [info.path.name for info in for_person(self.search(), None, wall=lambda: self.now).usable]


def archive(weights: str = "w") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("weights", weights)
    return buffer.getvalue()


def another(workspace: Workspace, name: str) -> Workspace:
    made = locate(workspace.state.parent / name, {})
    made.create()
    return made


@pytest.fixture
def bench(workspace: Workspace) -> Iterator[Bench]:
    made = Bench(workspace)
    yield made
    made.connection.close()


# --- looks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", FALSE_CLOCKS)
def test_what_appears_is_of_the_attempt_and_its_step_of_the_metrics_whatever_its_time(
    bench: Bench, shift: float
) -> None:
    bench.shift = shift
    bench.save("theirs.pt")
    bench.begin(1)
    bench.step(*range(1, 9))
    bench.save("last.pt")
    bench.save("step_8.pt")
    bench.save("step_5000.pt")
    bench.scan()
    rows = bench.rows()
    assert {name: (row.origin, row.step) for name, row in rows.items()} == {
        "theirs.pt": ("foreign", None), "last.pt": ("run", 8), "step_8.pt": ("run", 8), "step_5000.pt": ("run", 8),
    }  # fmt: skip
    # A clock that is set right makes nothing older.
    bench.shift = 0.0
    bench.step(9, 10)
    bench.save("step_10.pt")
    assert bench.scan()[0] == "step_10.pt"


def test_an_agent_that_was_away_finds_what_was_saved_between_its_looks(bench: Bench) -> None:
    bench.begin(1)
    for step in (10, 20, 30):
        bench.step(*range(step - 9, step + 1))
        bench.save(f"model_{step}.pt")
    assert bench.end() == ["model_30.pt", "model_20.pt", "model_10.pt"]
    assert [row.step for row in bench.rows().values()] == [10, 20, 30]
    bench.save("model_40.pt")
    bench.scan()
    assert bench.taken() == ["model_30.pt"] and bench.rows()["model_40.pt"].origin == "foreign"


def test_a_copy_of_an_older_one_is_not_the_newest_and_what_was_copied_away_is_found(bench: Bench) -> None:
    bench.begin(1)
    bench.step(*range(1, 21))
    bench.save("step_20.pt")
    bench.step(*range(21, 41))
    bench.save("step_40.pt")
    bench.scan()
    shutil.copyfile(bench.folder / "step_20.pt", bench.folder / "best.pt")
    bench.step(41)
    assert bench.end()[0] == "step_40.pt"
    assert bench.rows()["best.pt"].step == 20
    chosen(bench, "step_40.pt")
    shutil.copytree(bench.folder, bench.folder.with_name("away"))
    shutil.rmtree(bench.folder)
    bench.folder.with_name("away").rename(bench.folder)
    assert decided(bench) and bench.taken() == ["step_40.pt"]


@table(("kind", "every"), [(kind, every) for kind in (None, "killed", "user_exception") for every in (1, 10)])
def test_what_a_nan_poisoned_is_not_taken_whatever_the_attempt_ended_by(
    kind: str | None, every: int, workspace: Workspace
) -> None:
    bench = Bench(another(workspace, f"{kind} {every}"))
    bench.begin(1)
    for step in (50, 60):
        bench.step(*range(step - 9, step + 1, every), nan_from=58 if every == 1 else 51)
        bench.save(f"step_{step}.pt")
    assert bench.end(kind) == (["step_50.pt"] if every == 1 else [])
    bench.connection.close()


@pytest.mark.parametrize("kind", [None, "killed", "nan_loss"])
def test_nothing_is_struck_off_where_no_loss_was_ever_finite(bench: Bench, kind: str | None) -> None:
    """Such a loss does not tell sound checkpoints from others."""
    bench.begin(1)
    bench.step(*range(1, 21), nan_from=1)
    bench.save("step_20.pt")
    bench.step(21)
    assert bench.end(kind) == ["step_20.pt"]


def test_a_cut_folder_is_not_whole_for_lack_of_what_those_before_it_have(bench: Bench) -> None:
    bench.begin(1)
    for step in (10, 20, 30):
        bench.step(*range(step - 9, step + 1))
        bench.save(f"save_{step}/model.pt")
        if step != 30:
            bench.save(f"save_{step}/optimizer.pt")
        bench.scan()
    assert bench.end() == ["save_20", "save_10"] and "optimizer.pt" in bench.rows()["save_30"].why


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_whole_folder_is_not_compared_with_saves_that_are_gone(bench: Bench, is_moved: bool) -> None:
    """The one before it was removed or moved between two looks, as where a script keeps just the newest."""
    bench.begin(1)
    bench.step(10)
    bench.save("step_10/model.pt")
    bench.scan()
    bench.step(20)
    bench.save("step_20/model.pt")
    if is_moved:
        (bench.folder / "step_10").rename(bench.folder / "best")
    else:
        shutil.rmtree(bench.folder / "step_10")
    assert bench.end()[0] == "step_20"
    assert bench.rows()["step_20"].verdict != "cut"


@pytest.mark.parametrize(("later_steps", "shift", "is_cut"), [(0, 0.0, True), (3, 0.0, False), (3, 3600.0, True)])
def test_a_folder_that_is_written_over_may_be_of_two_saves(
    bench: Bench, later_steps: int, shift: float, is_cut: bool
) -> None:
    bench.begin(1)
    bench.step(*range(1, 11))
    for part in ("model", "optimizer"):
        bench.save(f"latest/{part}.pt")
    bench.scan()
    bench.shift = shift
    bench.step(11, 12)
    bench.save("latest/model.pt")
    bench.step(*range(13, 13 + later_steps))
    assert bench.end() == ([] if is_cut else ["latest"])
    choice = for_person(bench.search(), None, wall=lambda: bench.now)
    assert (choice.doubted is not None) is is_cut is (not choice.usable)


@table(("files", "is_whole"), [
    (("config.json", "model.safetensors"), False), (("config.json", "trainer_state.json"), False),
    (("config.json", "model.safetensors", "trainer_state.json"), True),
    (("model.safetensors", "random_states_0.pkl"), True), (("mp_rank_00_model_states.pt",), False),
    (("mp_rank_00_model_states.pt", "../latest"), True),
])  # fmt: skip
def test_a_first_checkpoint_that_was_cut_short_means_the_beginning(
    files: tuple[str, ...], is_whole: bool, workspace: Workspace
) -> None:
    bench = Bench(another(workspace, " ".join(files).replace("/", "")), "checkpoint-*")
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    bench.begin(1)
    bench.step(1, 2)
    for name in files:
        weights = struct.pack("<Q", len(header)) + header + bytes(4)
        data = weights if name.endswith("safetensors") else None if name.endswith(".pt") else b"checkpoint-500"
        bench.save(f"checkpoint-500/{name}", data)
    bench.end()
    choice = for_person(bench.search(), None)
    assert bool(choice.usable) is is_whole and choice.doubted is choice.unreadable is None
    assert is_whole or "cut short" in choice.refused[0].why
    bench.connection.close()


@table("name, number, seconds, is_timed, is_whole", [
    ("step_20.json", 20, 0.2, False, True), ("model_20.ubj", 20, 0.2, False, True), ("last.bin", 20, 0.2, True, True),
    # A line without a time may have been written before it was read.
    ("last.bin", 20, 0.2, False, False), ("last.bin", 20, 1.5, False, True),
    # Nothing came after it.
    ("step_20.json", 20, None, True, False), ("step_21.json", 21, 0.2, False, False), ("a.bin", 20, 0.01, True, False),
])  # fmt: skip
def test_a_save_in_a_format_that_cannot_be_checked_is_whole_if_its_attempt_went_on(
    name: str, number: int, seconds: float | None, is_timed: bool, is_whole: bool, workspace: Workspace
) -> None:
    bench = Bench(another(workspace, f"{name}{seconds}{is_timed}"))
    bench.begin(1)
    bench.step(9, 10)
    bench.save("step_10.json", b"{}")
    bench.step(19)
    bench.step(number, is_timed=is_timed)
    bench.save(name, b"[]")
    if seconds is not None:
        bench.now += seconds - 1.0
        bench.step(21, is_timed=is_timed)
    bench.now -= 0.9
    bench.end()
    choice = for_person(bench.search(), None)
    assert next(info.path.name for info in choice.usable) == (name if is_whole else "step_10.json")
    assert is_whole or mentions(choice.refused[0].why, "may be half-written")
    bench.connection.close()


def test_two_homes_in_one_folder_are_told_apart_and_stopped(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    searches, homes = [], []
    for name in ("one", "two"):
        workspace = locate(tmp_path / name, {})
        workspace.create()
        open_store(workspace.database).close()
        homes.append(workspace)
        searches.append(CheckpointSearch(workspace.database, "a-1", shared, "*", (), ()))
    identity = identify(os.getpid())
    assert identity is not None
    lock = AgentLock.take(homes[0].agent_lock)
    lock.describe({**identity._asdict(), "version": "0", "started_at": 1.0, "recording": False, "ready": True})
    for _ in range(2):
        scan(searches[0], BEGIN)
    with pytest.raises(OSError, match=TWO_HOMES):
        scan(searches[1], BEGIN)
    lock.release()
    scan(searches[1], BEGIN)
    scan(searches[0], BEGIN)


# --- pruning ----------------------------------------------------------------------------------------------------------


def test_only_what_is_older_by_the_ledger_is_pruned(bench: Bench) -> None:
    """Neither the number of an epoch nor that of a loss says which is old."""
    theirs = bench.save("epoch=0-val_loss=9.99.pt")
    bench.begin(1)
    names = ["epoch=1-val_loss=0.93.pt", "epoch=2-val_loss=0.90.pt", "best.pt", "epoch=5-val_loss=0.40.pt"]
    for number, name in enumerate([*names, "epoch=9-val_loss=0.12.pt", "epoch=10-val_loss=0.11.pt"], start=1):
        bench.step(number)
        bench.save(name, b"PK\x03\x04 cut short" if "=10-" in name else None)
        bench.scan()
    bench.end()
    assert prune(bench.search(), Keep(9)).removed == ()
    kept = str(bench.folder / names[0])
    removed = prune(bench.search(), Keep(2, [kept])).removed
    assert [PurePath(path).name for path in removed] == ["epoch=2-val_loss=0.90.pt"] and theirs.exists()


def test_the_files_of_all_ranks_are_pruned_together(bench: Bench) -> None:
    bench.begin(1)
    for step in (10, 20, 30, 40):
        bench.step(step)
        for rank in range(3):
            # Of the newest one a rank's file was cut short: it does not count.
            is_cut = (step, rank) == (40, 1)
            bench.save(f"step_{step}_rank{rank}.pt", b"PK\x03\x04 cut short" if is_cut else None)
        bench.scan()
    bench.end()
    prune(bench.search(), Keep(1, [str(bench.folder / "step_10_rank1.pt")]))
    left = [f"step_{step}_rank{rank}.pt" for step in (10, 30, 40) for rank in range(3)]
    assert sorted(path.name for path in bench.folder.iterdir()) == left


def test_a_save_that_names_its_own_parts_is_pruned_with_them(bench: Bench) -> None:
    bench.begin(1)
    for step in (10, 20, 30):
        bench.step(step)
        names = [f"step_{step}.pt", f"step_{step}_optimizer.pt"]
        hashes = [sha256(bench.save(name).read_bytes()).hexdigest() for name in names]
        lines = (f"{known}  {name}\n" for known, name in zip(hashes, names, strict=True))
        (bench.folder / f"{names[0]}.sha256").write_text("".join(lines))
        bench.scan()
    bench.end()
    prune(bench.search(), Keep(1))
    assert {path.name.partition(".")[0] for path in bench.folder.iterdir()} == {"step_30", "step_30_optimizer"}


def test_what_others_need_is_not_pruned(bench: Bench) -> None:
    bench.begin(1)
    for step in (5, 10, 20, 30):
        bench.step(step)
        bench.save(f"step_{step}.pt")
        bench.scan()
    (bench.folder / ".kept").symlink_to("step_10.pt")
    parts = (
        f"{sha256((bench.folder / name).read_bytes()).hexdigest()}  {name}\n" for name in ("step_30.pt", "step_5.pt")
    )
    (bench.folder / "step_30.pt.sha256").write_text("".join(parts))
    bench.end()
    assert [PurePath(path).name for path in prune(bench.search(), Keep(1)).removed] == ["step_20.pt"]


# --- a target that chooses itself -------------------------------------------------------------------------------------


def test_the_far_side_hears_whose_checkpoints_it_may_take(bench: Bench) -> None:
    """Of what a person began last; with when numbers went wrong, and who could not begin from a checkpoint."""

    def move(run: Run, state: RunState, cause: str = "") -> None:
        bench.now += 1.0
        with transaction(bench.connection) as connection:
            repository.move(connection, run, state, cause=cause, now=bench.now)

    def elsewhere(poll: int = 2) -> list[dict[str, Any]]:
        spec = json.loads(bench.run().spec_json) | {"target": {"name": "k", "kind": "ssh", "host": "k", "poll": poll}}
        fresh = replace(bench.run(), resume_from=None, spec_json=json.dumps(spec))
        return checkpoint_survey.attempts_to_resume(bench.connection, bench.workspace, fresh)

    bench.begin(1)
    bench.end()
    for state in (RunState.STARTING, RunState.STOPPED, RunState.QUEUED):
        move(bench.run(), state)
    assert elsewhere() == []
    bench.begin(2)
    begun_at = bench.now
    bench.step(*range(1, 51), nan_from=40)
    bench.end()
    bench.begin(3)
    bench.end()
    bench.connection.execute(
        "INSERT INTO incidents (run_id, attempt, at, kind, step, summary, fingerprint, evidence) VALUES "
        "('a-1', 3, 1.0, 'user_exception', NULL, '', '', '[]')"
    )
    nan, cut = elsewhere()
    assert (nan["attempt"], nan["failed"]) == (2, False) and begun_at + 30 < nan["until"] < begun_at + 40
    # What was fetched together may be as old as the pause before.
    assert elsewhere(poll=30)[0]["until"] == nan["until"] - 25
    assert cut == {"attempt": 3, "until": None, "failed": True, "base": None}


# --- a folder that is away --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended_well", [True, False])
def test_the_last_save_of_a_command_that_ended_with_code_0_is_whole(bench: Bench, ended_well: bool) -> None:
    """As a script saves on SIGTERM before it exits; its format cannot be checked."""
    bench.begin(1)
    bench.step(*range(1, 11))
    bench.save("step_10.json", b"{}")
    bench.step(*range(11, 21))
    bench.scan()
    bench.save("step_20.json", b"{}{}")
    bench.now += 0.1
    search = search_now(bench.context, bench.run(), bench.now, ended_well=ended_well)
    assert search is not None
    choice = choose(surveyed(search, lambda: bench.now), search.attempts, 1)
    assert choice.usable[0].path.name == ("step_20.json" if ended_well else "step_10.json")


@pytest.mark.parametrize(("state", "is_away"), [("empty", True), ("gone", True), ("in use", False)])
def test_the_beginning_is_not_taken_for_checkpoints_whose_folder_went_away(
    bench: Bench, tmp_path: Path, state: str, is_away: bool
) -> None:
    bench.begin(1)
    bench.step(10)
    bench.save("step_10.pt")
    bench.scan()
    away = (bench.folder / "step_10.pt").rename(tmp_path / "step_10.pt")
    if state == "gone":
        bench.folder.rmdir()
    if state == "in use":
        (bench.folder / ".notes.txt").touch()
    saving = replace(SPEC, checkpoints=CheckpointSpec("checkpoints", "*.pt"))
    task = PostmortemTask(
        resolved=ResolvedRun(saving, POLICIES["standard"], Redactor([])), folder=tmp_path,
        attempt=attempt_of(bench.connection, 1), exit_record={"code": 1}, survivors=(), rebooted=False,
        ended_at=bench.now, checkpoints=bench.search(ended=True),
    )  # fmt: skip
    after_failure, by_hand = examine(task).checkpoints, for_person(bench.search(), None)
    assert after_failure is not None and after_failure.usable == by_hand.usable == ()
    assert (after_failure.unreadable is not None) is (by_hand.unreadable is not None) is is_away
    bench.folder.mkdir(exist_ok=True)
    shutil.copyfile(away, bench.folder / "step_10.pt")
    assert bench.taken() == ["step_10.pt"]


def test_an_attempt_waits_for_the_folder_of_its_checkpoint_to_come_back(bench: Bench, tmp_path: Path) -> None:
    bench.begin(1)
    bench.step(10)
    bench.save("step_10.pt")
    bench.end()
    chosen(bench, "step_10.pt")
    away = (bench.folder / "step_10.pt").rename(tmp_path / "step_10.pt")
    assert not decided(bench)
    assert bench.run().state is RunState.QUEUED and "step_10.pt" in (bench.run().waiting_for or "")
    away.rename(bench.folder / "step_10.pt")
    assert decided(bench)


# --- between the choice and the start ---------------------------------------------------------------------------------


def chosen(bench: Bench, name: str) -> None:
    with transaction(bench.connection) as connection:
        repository.set_next_attempt(connection, "a-1", params={}, resume_from=str(bench.folder / name), not_before=None)


def decided(bench: Bench) -> bool:
    """Return whether it may start, once its folder was looked into."""
    assert not check_before_start(bench.context, bench.run())
    wait_until(lambda: not bench.context.jobs.is_busy, what="the look")
    return check_before_start(bench.context, bench.run())


@pytest.mark.parametrize("remains", [True, False])
def test_one_that_another_wrote_again_meanwhile_is_not_begun_from(bench: Bench, remains: bool) -> None:
    bench.begin(1)
    bench.step(10)
    if remains:
        bench.save("step_10.pt")
        bench.scan()
    bench.save("last.pt")
    bench.end()
    chosen(bench, "last.pt")
    bench.save("last.pt")
    assert not decided(bench)
    if remains:
        assert bench.run().resume_from == str(bench.folder / "step_10.pt") and decided(bench)
        (kind,) = bench.connection.execute("SELECT kind FROM events ORDER BY event_id DESC").fetchone()
        assert kind == "checkpoint_replaced"
    else:
        assert bench.run().state is RunState.FAILED and "last.pt" in (bench.run().reason or "")


# --- read back --------------------------------------------------------------------------------------------------------


def test_the_ledger_is_read_back_with_what_was_struck_off(bench: Bench) -> None:
    bench.begin(1)
    for step in (50, 60):
        bench.step(*range(step - 9, step + 1), nan_from=58)
        bench.save(f"step_{step}.pt")
    before = bench.end(None)
    bench.connection.execute("DELETE FROM checkpoints")
    assert bench.usable() == []
    checkpoint_survey.restore(bench.connection, "a-1", bench.workspace.run_dir("a-1"))
    assert bench.usable() == before == ["step_50.pt"] and bench.taken() == ["step_50.pt"]


@pytest.mark.parametrize("lives", [True, False], ids=["trains", "over"])
def test_a_file_that_a_tool_adds_to_a_folder_changes_nothing(bench: Bench, lives: bool) -> None:
    bench.begin(1)
    for step in (10, 20):
        bench.step(*range(step - 9, step + 1))
        bench.save(f"save_{step}/model.pt")
        bench.scan()
    if not lives:
        assert bench.end() == ["save_20", "save_10"]
    bench.scan()
    added = "save_10" if lives else "save_20"
    bench.step(*range(21, 31 if lives else 21))
    bench.save(f"{added}/pytorch_model.bin")
    steps = {name: row.step for name, row in bench.rows().items()}
    assert bench.scan() == ["save_20", "save_10"]
    assert {name: row.step for name, row in bench.rows().items()} == steps


@pytest.mark.parametrize("size_bytes", [6 << 20, 80 << 20])
def test_two_saves_of_a_model_that_is_frozen_but_for_a_layer_are_two(bench: Bench, size_bytes: int) -> None:
    bench.begin(1)
    for step in (10, 20):
        bench.step(*range(step - 9, step + 1))
        path = bench.save(f"save_{step}.npy", b"")
        os.truncate(path, size_bytes)
        with path.open("r+b") as file:
            file.seek(size_bytes // 3)
            file.write(bytes([step]) * (512 << 10))
        bench.scan()
    assert {row.step for row in bench.rows().values()} == {10, 20}


def test_runs_of_one_folder_own_what_lies_beside_their_metrics(workspace: Workspace) -> None:
    bench = Bench(workspace)
    bench.begin(1)
    folder = Path(os.path.realpath(bench.folder))
    add_run(bench.connection, "b-1", now=bench.now)
    bench.connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, checkpoint_folder) "
        "VALUES ('b-1', 1, 'running', '{}', '[]', '{}', ?, ?)",
        (bench.now, str(folder)),
    )
    sources = [("a-1", "logs/version_1/metrics.csv"), ("b-1", "logs/version_0/metrics.csv")]
    sources += [("a-1", "shared/events.out.tfevents.1"), ("b-1", "shared/events.out.tfevents.2"), ("a-1", "log.csv")]
    bench.connection.executemany(
        "INSERT INTO metric_sources (run_id, path, format) VALUES (?, ?, 'csv')",
        [(run_id, f"{folder}/{path}") for run_id, path in sources],
    )
    search = search_now(bench.context, bench.run())
    assert search is not None and search.metric_folders == (str(folder / "logs/version_1"),)
    # Of a neighbour that writes no metrics, files may lie there too.
    bench.connection.execute("UPDATE metric_sources SET run_id = NULL WHERE run_id = 'b-1'")
    search = search_now(bench.context, bench.run())
    assert search is not None and search.metric_folders == ()
    bench.connection.execute("UPDATE attempts SET checkpoint_folder = '/elsewhere' WHERE run_id = 'b-1'")
    search = search_now(bench.context, bench.run())
    assert search is not None and str(folder / "logs/version_1") in search.metric_folders
