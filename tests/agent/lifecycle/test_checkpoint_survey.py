"""The agent's side of the ledger: what it sees before, during and after attempts, what is pruned, what is read back."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.agent_lock import AgentLock
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.checkpoint_survey import TWO_HOMES, scan, search_now
from gputui.agent.lifecycle.live_attempt import PostmortemTask
from gputui.agent.lifecycle.postmortem import examine
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.start_conditions import check_before_start
from gputui.core.config import Workspace, locate
from gputui.core.redaction import Redactor
from gputui.recovery.checkpoints.choices import choose, for_person
from gputui.recovery.checkpoints.removal import Keep, prune
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.recovery.policies import POLICIES
from gputui.runs import repository
from gputui.runs.identity import identify
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.agent.lifecycle.checkpoint_home import CheckpointHome
from tests.conftest import wait_until
from tests.homes import NOW, SPEC, add_attempt, add_run, add_source, attempt_of, open_store
from tests.tables import table
from tests.texts import mentions

FALSE_CLOCKS = [0.0, 3600.0, -7200.0]


def workspace_beside(workspace: Workspace, name: str) -> Workspace:
    second_workspace = locate(workspace.state.parent / name, {})
    second_workspace.create()
    return second_workspace


@pytest.fixture
def home(workspace: Workspace) -> Iterator[CheckpointHome]:
    with closing(CheckpointHome(workspace)) as home:
        yield home


def choose_base(home: CheckpointHome, name: str) -> None:
    with transaction(home.connection) as connection:
        repository.set_next_attempt(connection, "a-1", params={}, resume_from=str(home.folder / name), not_before=None)


def is_decided(home: CheckpointHome) -> bool:
    """Look into the folder of its checkpoint; returns whether the run may start."""
    assert not check_before_start(home.services, home.run_of())
    wait_until(lambda: not home.services.jobs.is_busy, what="the look")
    return check_before_start(home.services, home.run_of())


# --- looks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", FALSE_CLOCKS)
def test_what_appears_is_of_the_attempt_and_its_step_of_the_metrics_whatever_its_time(
    home: CheckpointHome, shift: float
) -> None:
    home.shift = shift
    home.save("theirs.pt")
    home.begin(1)
    home.step(*range(1, 9))
    home.save("last.pt")
    home.save("step_8.pt")
    home.save("step_5000.pt")
    home.scan()
    rows = home.ledger()
    assert {name: (row.origin, row.step) for name, row in rows.items()} == {
        "theirs.pt": ("foreign", None), "last.pt": ("run", 8), "step_8.pt": ("run", 8), "step_5000.pt": ("run", 8),
    }  # fmt: skip
    # That the clock is set right makes no file older than another.
    home.shift = 0.0
    home.step(9, 10)
    home.save("step_10.pt")
    assert home.scan()[0] == "step_10.pt"


def test_an_agent_that_was_away_finds_what_was_saved_between_its_looks(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (10, 20, 30):
        home.step(*range(step - 9, step + 1))
        home.save(f"model_{step}.pt")
    assert home.end() == ["model_30.pt", "model_20.pt", "model_10.pt"]
    assert [row.step for row in home.ledger().values()] == [10, 20, 30]
    home.save("model_40.pt")
    home.scan()
    assert home.resumable_by_person() == ["model_30.pt"]
    assert home.ledger()["model_40.pt"].origin == "foreign"


def test_a_copy_of_an_older_one_is_not_the_newest_and_what_was_copied_away_is_found(home: CheckpointHome) -> None:
    home.begin(1)
    home.step(*range(1, 21))
    home.save("step_20.pt")
    home.step(*range(21, 41))
    home.save("step_40.pt")
    home.scan()
    shutil.copyfile(home.folder / "step_20.pt", home.folder / "best.pt")
    home.step(41)
    assert home.end()[0] == "step_40.pt"
    assert home.ledger()["best.pt"].step == 20
    choose_base(home, "step_40.pt")
    shutil.copytree(home.folder, home.folder.with_name("away"))
    shutil.rmtree(home.folder)
    home.folder.with_name("away").rename(home.folder)
    assert is_decided(home)
    assert home.resumable_by_person() == ["step_40.pt"]


@table(("kind", "every"), [(kind, every) for kind in (None, "killed", "user_exception") for every in (1, 10)])
def test_what_a_nan_poisoned_is_not_taken_whatever_the_attempt_ended_by(
    kind: str | None, every: int, workspace: Workspace
) -> None:
    home = CheckpointHome(workspace_beside(workspace, f"{kind} {every}"))
    home.begin(1)
    for step in (50, 60):
        nan_from = 58 if every == 1 else 51
        home.step(*range(step - 9, step + 1, every), nan_from=nan_from)
        home.save(f"step_{step}.pt")
    expected = ["step_50.pt"] if every == 1 else []
    assert home.end(kind) == expected
    home.connection.close()


@pytest.mark.parametrize("kind", [None, "killed", "nan_loss"])
def test_nothing_is_struck_off_where_no_loss_was_ever_finite(home: CheckpointHome, kind: str | None) -> None:
    """Such a loss does not tell sound checkpoints from others."""
    home.begin(1)
    home.step(*range(1, 21), nan_from=1)
    home.save("step_20.pt")
    home.step(21)
    assert home.end(kind) == ["step_20.pt"]


def test_a_cut_folder_is_not_whole_for_lack_of_what_those_before_it_have(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (10, 20, 30):
        home.step(*range(step - 9, step + 1))
        home.save(f"save_{step}/model.pt")
        if step != 30:
            home.save(f"save_{step}/optimizer.pt")
        home.scan()
    assert home.end() == ["save_20", "save_10"]
    assert "optimizer.pt" in home.ledger()["save_30"].why


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_whole_folder_is_not_compared_with_saves_that_are_gone(home: CheckpointHome, is_moved: bool) -> None:
    """The one before it was removed or moved between two looks, as where a script keeps just the newest."""
    home.begin(1)
    home.step(10)
    home.save("step_10/model.pt")
    home.scan()
    home.step(20)
    home.save("step_20/model.pt")
    if is_moved:
        (home.folder / "step_10").rename(home.folder / "best")
    else:
        shutil.rmtree(home.folder / "step_10")
    assert home.end()[0] == "step_20"
    assert home.ledger()["step_20"].verdict != "cut"


@pytest.mark.parametrize(("later_steps", "shift", "is_cut"), [(0, 0.0, True), (3, 0.0, False), (3, 3600.0, True)])
def test_a_folder_that_is_written_over_may_be_of_two_saves(
    home: CheckpointHome, later_steps: int, shift: float, is_cut: bool
) -> None:
    home.begin(1)
    home.step(*range(1, 11))
    for part in ("model", "optimizer"):
        home.save(f"latest/{part}.pt")
    home.scan()
    home.shift = shift
    home.step(11, 12)
    home.save("latest/model.pt")
    home.step(*range(13, 13 + later_steps))
    expected = [] if is_cut else ["latest"]
    assert home.end() == expected
    choice = for_person(home.search(), None, wall=lambda: home.now)
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
    home = CheckpointHome(workspace_beside(workspace, " ".join(files).replace("/", "")), "checkpoint-*")
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    home.begin(1)
    home.step(1, 2)
    for name in files:
        weights = struct.pack("<Q", len(header)) + header + bytes(4)
        data: bytes | None = b"checkpoint-500"
        if name.endswith("safetensors"):
            data = weights
        elif name.endswith(".pt"):
            data = None
        home.save(f"checkpoint-500/{name}", data)
    home.end()
    choice = for_person(home.search(), None)
    assert bool(choice.usable) is is_whole
    assert choice.doubted is choice.unreadable is None
    assert is_whole or "cut short" in choice.refused[0].why
    home.connection.close()


@table("name, number, seconds, is_timed, is_whole", [
    ("step_20.json", 20, 0.2, False, True), ("model_20.ubj", 20, 0.2, False, True), ("last.bin", 20, 0.2, True, True),
    # A line without a time may have been written before it was read.
    ("last.bin", 20, 0.2, False, False), ("last.bin", 20, 1.5, False, True),
    # No line came after the save.
    ("step_20.json", 20, None, True, False), ("step_21.json", 21, 0.2, False, False), ("a.bin", 20, 0.01, True, False),
])  # fmt: skip
def test_a_save_in_a_format_that_cannot_be_checked_is_whole_if_its_attempt_went_on(
    name: str, number: int, seconds: float | None, is_timed: bool, is_whole: bool, workspace: Workspace
) -> None:
    home = CheckpointHome(workspace_beside(workspace, f"{name}{seconds}{is_timed}"))
    home.begin(1)
    home.step(9, 10)
    home.save("step_10.json", b"{}")
    home.step(19)
    home.step(number, is_timed=is_timed)
    home.save(name, b"[]")
    if seconds is not None:
        home.now += seconds - 1.0
        home.step(21, is_timed=is_timed)
    home.now -= 0.9
    home.end()
    choice = for_person(home.search(), None)
    expected = name if is_whole else "step_10.json"
    assert next(info.path.name for info in choice.usable) == expected
    assert is_whole or mentions(choice.refused[0].why, "may be half-written")
    home.connection.close()


def test_two_homes_in_one_folder_are_told_apart_and_stopped(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    searches = []
    homes = []
    for name in ("one", "two"):
        workspace = locate(tmp_path / name, {})
        workspace.create()
        open_store(workspace.database).close()
        homes.append(workspace)
        searches.append(CheckpointSearch(workspace.database, "a-1", shared, pattern="*", rows=(), attempts=()))
    identity = identify(os.getpid())
    assert identity is not None
    lock = AgentLock.take(homes[0].agent_lock)
    lock.describe({**identity._asdict(), "version": "0", "started_at": 1.0, "recording": False, "ready": True})
    for _ in range(2):
        scan(searches[0], NOW)
    with pytest.raises(OSError, match=TWO_HOMES):
        scan(searches[1], NOW)
    lock.release()
    scan(searches[1], NOW)
    scan(searches[0], NOW)


@pytest.mark.parametrize("ended_well", [True, False])
def test_the_last_save_of_a_command_that_ended_with_code_0_is_whole(home: CheckpointHome, ended_well: bool) -> None:
    """As a script saves on SIGTERM before it exits; its format cannot be checked."""
    home.begin(1)
    home.step(*range(1, 11))
    home.save("step_10.json", b"{}")
    home.step(*range(11, 21))
    home.scan()
    home.save("step_20.json", b"{}{}")
    home.now += 0.1
    search = search_now(home.services, home.run_of(), home.now, ended_well=ended_well)
    assert search is not None
    choice = choose(surveyed(search, lambda: home.now), search.attempts, 1)
    expected = "step_20.json" if ended_well else "step_10.json"
    assert choice.usable[0].path.name == expected


@pytest.mark.parametrize("lives", [True, False], ids=["trains", "over"])
def test_a_file_that_a_tool_adds_to_a_folder_changes_nothing(home: CheckpointHome, lives: bool) -> None:
    home.begin(1)
    for step in (10, 20):
        home.step(*range(step - 9, step + 1))
        home.save(f"save_{step}/model.pt")
        home.scan()
    if not lives:
        assert home.end() == ["save_20", "save_10"]
    home.scan()
    added = "save_10" if lives else "save_20"
    home.step(*range(21, 31 if lives else 21))
    home.save(f"{added}/pytorch_model.bin")
    steps = {name: row.step for name, row in home.ledger().items()}
    assert home.scan() == ["save_20", "save_10"]
    assert {name: row.step for name, row in home.ledger().items()} == steps


@pytest.mark.parametrize("size_bytes", [6 << 20, 80 << 20])
def test_two_saves_of_a_model_that_is_frozen_but_for_a_layer_are_two(home: CheckpointHome, size_bytes: int) -> None:
    home.begin(1)
    for step in (10, 20):
        home.step(*range(step - 9, step + 1))
        path = home.save(f"save_{step}.npy", b"")
        os.truncate(path, size_bytes)
        with path.open("r+b") as file:
            file.seek(size_bytes // 3)
            file.write(bytes([step]) * (512 << 10))
        home.scan()
    assert {row.step for row in home.ledger().values()} == {10, 20}


def test_runs_of_one_folder_own_what_lies_beside_their_metrics(home: CheckpointHome) -> None:
    home.begin(1)
    folder = Path(os.path.realpath(home.folder))
    add_run(home.connection, "b-1", now=home.now)
    add_attempt(home.connection, "b-1", checkpoint_folder=str(folder))
    sources = [("a-1", "logs/version_1/metrics.csv"), ("b-1", "logs/version_0/metrics.csv")]
    sources += [("a-1", "shared/events.out.tfevents.1"), ("b-1", "shared/events.out.tfevents.2"), ("a-1", "log.csv")]
    for run_id, path in sources:
        add_source(home.connection, run_id, f"{folder}/{path}", "csv")
    search = search_now(home.services, home.run_of())
    assert search is not None
    assert search.metric_folders == (str(folder / "logs/version_1"),)
    # A neighbour without metrics may have written into that folder as well.
    home.connection.execute("UPDATE metric_sources SET run_id = NULL WHERE run_id = 'b-1'")
    search = search_now(home.services, home.run_of())
    assert search is not None
    assert search.metric_folders == ()
    home.connection.execute("UPDATE attempts SET checkpoint_folder = '/elsewhere' WHERE run_id = 'b-1'")
    search = search_now(home.services, home.run_of())
    assert search is not None
    assert str(folder / "logs/version_1") in search.metric_folders


# --- pruning ----------------------------------------------------------------------------------------------------------


def test_only_what_is_older_by_the_ledger_is_pruned(home: CheckpointHome) -> None:
    """Neither the number of an epoch nor that of a loss says which is old."""
    theirs = home.save("epoch=0-val_loss=9.99.pt")
    home.begin(1)
    names = ["epoch=1-val_loss=0.93.pt", "epoch=2-val_loss=0.90.pt", "best.pt", "epoch=5-val_loss=0.40.pt"]
    for number, name in enumerate([*names, "epoch=9-val_loss=0.12.pt", "epoch=10-val_loss=0.11.pt"], start=1):
        home.step(number)
        home.save(name, b"PK\x03\x04 cut short" if "=10-" in name else None)
        home.scan()
    home.end()
    assert prune(home.search(), Keep(9)).removed == ()
    base = str(home.folder / names[0])
    removed = prune(home.search(), Keep(2, [base])).removed
    assert [PurePath(path).name for path in removed] == ["epoch=2-val_loss=0.90.pt"]
    assert theirs.exists()


def test_the_files_of_all_ranks_are_pruned_together(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (10, 20, 30, 40):
        home.step(step)
        for rank in range(3):
            # Of the newest one a rank's file was cut short: it does not count.
            is_cut = (step, rank) == (40, 1)
            home.save(f"step_{step}_rank{rank}.pt", b"PK\x03\x04 cut short" if is_cut else None)
        home.scan()
    home.end()
    prune(home.search(), Keep(1, [str(home.folder / "step_10_rank1.pt")]))
    expected = [f"step_{step}_rank{rank}.pt" for step in (10, 30, 40) for rank in range(3)]
    assert sorted(path.name for path in home.folder.iterdir()) == expected


def test_a_save_that_names_its_own_parts_is_pruned_with_them(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (10, 20, 30):
        home.step(step)
        names = [f"step_{step}.pt", f"step_{step}_optimizer.pt"]
        hashes = [sha256(home.save(name).read_bytes()).hexdigest() for name in names]
        lines = (f"{digest}  {name}\n" for digest, name in zip(hashes, names, strict=True))
        (home.folder / f"{names[0]}.sha256").write_text("".join(lines))
        home.scan()
    home.end()
    prune(home.search(), Keep(1))
    assert {path.name.partition(".")[0] for path in home.folder.iterdir()} == {"step_30", "step_30_optimizer"}


def test_what_others_need_is_not_pruned(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (5, 10, 20, 30):
        home.step(step)
        home.save(f"step_{step}.pt")
        home.scan()
    (home.folder / ".kept").symlink_to("step_10.pt")
    parts = (
        f"{sha256((home.folder / name).read_bytes()).hexdigest()}  {name}\n" for name in ("step_30.pt", "step_5.pt")
    )
    (home.folder / "step_30.pt.sha256").write_text("".join(parts))
    home.end()
    assert [PurePath(path).name for path in prune(home.search(), Keep(1)).removed] == ["step_20.pt"]


# --- a target that chooses itself -------------------------------------------------------------------------------------


def test_the_far_side_hears_whose_checkpoints_it_may_take(home: CheckpointHome) -> None:
    """Attempts since a person last started the run, with when numbers went wrong and which failed to load."""

    def move(run: Run, state: RunState, cause: str = "") -> None:
        home.now += 1.0
        with transaction(home.connection) as connection:
            repository.move(connection, run, state, cause=cause, now=home.now)

    def elsewhere(poll: int = 2) -> list[dict[str, Any]]:
        spec = json.loads(home.run_of().spec_json) | {"target": {"name": "k", "kind": "ssh", "host": "k", "poll": poll}}
        fresh = replace(home.run_of(), resume_from=None, spec_json=json.dumps(spec))
        return checkpoint_survey.attempts_to_resume(home.connection, home.workspace, fresh)

    home.begin(1)
    home.end()
    for state in (RunState.STARTING, RunState.STOPPED, RunState.QUEUED):
        move(home.run_of(), state)
    assert elsewhere() == []
    home.begin(2)
    begun_at = home.now
    home.step(*range(1, 51), nan_from=40)
    home.end()
    home.begin(3)
    home.end()
    home.incident("a-1", 3, "user_exception", "")
    nan, cut = elsewhere()
    assert (nan["attempt"], nan["failed"]) == (2, False)
    assert begun_at + 30 < nan["until"] < begun_at + 40
    # A line that was fetched with others may be as old as the pause before.
    assert elsewhere(poll=30)[0]["until"] == nan["until"] - 25
    assert cut == {"attempt": 3, "until": None, "failed": True, "base": None}


# --- a folder that is away --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "is_away"), [("empty", True), ("gone", True), ("in use", False)])
def test_the_beginning_is_not_taken_for_checkpoints_whose_folder_went_away(
    home: CheckpointHome, tmp_path: Path, state: str, is_away: bool
) -> None:
    home.begin(1)
    home.step(10)
    home.save("step_10.pt")
    home.scan()
    away = (home.folder / "step_10.pt").rename(tmp_path / "step_10.pt")
    if state == "gone":
        home.folder.rmdir()
    if state == "in use":
        (home.folder / ".notes.txt").touch()
    saving = replace(SPEC, checkpoints=CheckpointSpec("checkpoints", "*.pt"))
    task = PostmortemTask(
        resolved=ResolvedRun(saving, POLICIES["standard"], Redactor([])), folder=tmp_path,
        attempt=attempt_of(home.connection, 1), exit_record={"code": 1}, survivors=(), rebooted=False,
        ended_at=home.now, checkpoints=home.search(ended=True),
    )  # fmt: skip
    after_failure = examine(task).checkpoints
    by_hand = for_person(home.search(), None)
    assert after_failure is not None
    assert after_failure.usable == by_hand.usable == ()
    assert (after_failure.unreadable is not None) is (by_hand.unreadable is not None) is is_away
    home.folder.mkdir(exist_ok=True)
    shutil.copyfile(away, home.folder / "step_10.pt")
    assert home.resumable_by_person() == ["step_10.pt"]


def test_an_attempt_waits_for_the_folder_of_its_checkpoint_to_come_back(home: CheckpointHome, tmp_path: Path) -> None:
    home.begin(1)
    home.step(10)
    home.save("step_10.pt")
    home.end()
    choose_base(home, "step_10.pt")
    away = (home.folder / "step_10.pt").rename(tmp_path / "step_10.pt")
    assert not is_decided(home)
    assert home.run_of().state is RunState.QUEUED
    assert "step_10.pt" in (home.run_of().waiting_for or "")
    away.rename(home.folder / "step_10.pt")
    assert is_decided(home)


# --- between the choice and the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("remains", [True, False])
def test_one_that_another_wrote_again_meanwhile_is_not_begun_from(home: CheckpointHome, remains: bool) -> None:
    home.begin(1)
    home.step(10)
    if remains:
        home.save("step_10.pt")
        home.scan()
    home.save("last.pt")
    home.end()
    choose_base(home, "last.pt")
    home.save("last.pt")
    assert not is_decided(home)
    if remains:
        assert home.run_of().resume_from == str(home.folder / "step_10.pt")
        assert is_decided(home)
        (kind,) = home.connection.execute("SELECT kind FROM events ORDER BY event_id DESC").fetchone()
        assert kind == "checkpoint_replaced"
    else:
        assert home.run_of().state is RunState.FAILED
        assert "last.pt" in (home.run_of().reason or "")


# --- read back --------------------------------------------------------------------------------------------------------


def test_the_ledger_is_read_back_with_what_was_struck_off(home: CheckpointHome) -> None:
    home.begin(1)
    for step in (50, 60):
        home.step(*range(step - 9, step + 1), nan_from=58)
        home.save(f"step_{step}.pt")
    before = home.end(None)
    home.connection.execute("DELETE FROM checkpoints")
    assert home.usable() == []
    checkpoint_survey.restore(home.connection, "a-1", home.workspace.run_dir("a-1"))
    assert home.usable() == before == ["step_50.pt"]
    assert home.resumable_by_person() == ["step_50.pt"]
