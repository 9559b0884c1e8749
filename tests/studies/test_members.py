"""What the process of a population decides, step by step."""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.config import Workspace
from gputui.profiles.loading import load
from gputui.profiles.resolve import resolve
from gputui.runs.repository import transaction
from gputui.runs.spec import Phase
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, TrialState, read_rungs
from gputui.studies import donors, rows
from gputui.studies.lineage import LineageError, lineage
from gputui.studies.pbt import Exploit
from gputui.studies.phased_profile import ProfileChangedError, phased_profile
from tests.stores import open_store
from tests.studies.desk import POPULATION, STUDY, Desk


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_store(workspace.database)) as made:
        yield made


@pytest.fixture
def desk(workspace: Workspace, connection: sqlite3.Connection) -> Desk:
    """Four members that train; trial 0 is the best by far, and trial 3 the worst."""
    made = Desk(workspace, connection, POPULATION)
    made.work()
    assert made.states() == ["running"] * 4
    return made


def pass_milestone(desk: Desk, milestone: int) -> None:
    """All members train up to a milestone, and save a checkpoint there."""
    for trial in desk.trials:
        if trial.state is TrialState.RUNNING:
            for step in ((milestone - 1) * 10 + 5, milestone * 10 - 1, milestone * 10):
                desk.report(trial.number, step, 0.1 * (trial.number + 1) / milestone)
            desk.save(trial.number, milestone * 10)


def exploit(desk: Desk, milestone: int = 1) -> None:
    """The worst member is asked to stop, to go on from the best."""
    pass_milestone(desk, milestone)
    desk.process.turn()
    assert desk.trial(3).state is TrialState.STOPPING


def test_the_worst_member_goes_on_from_a_pin_of_the_best_one(desk: Desk) -> None:
    exploit(desk)
    desk.work()
    worst = desk.trial(3)
    assert (worst.state, worst.parent, worst.generation) == (TrialState.RUNNING, 0, 1)
    newest = desk.attempts(3)[-1]
    assert newest["params"]["rate"] == worst.params["rate"]
    assert Path(newest["from"]).parent.parent == desk.workspace.studies / STUDY / donors.PINS


def test_what_a_member_reached_before_it_left_its_training_counts_no_more(desk: Desk) -> None:
    pass_milestone(desk, 1)
    # It is ahead of the others when the milestone is decided.
    for step in (20, 30):
        desk.report(3, step, 0.9)
    desk.process.turn()
    assert desk.trial(3).state is TrialState.STOPPING
    assert {one.rung for one in read_rungs(desk.connection, STUDY) if one.number == 3} == {1}
    desk.work()
    # Its next attempt begins from the donor's step 10.
    desk.report(3, 15, 0.05)
    desk.process.turn()
    assert desk.trial(3).rung == 1
    desk.report(3, 19, 0.04)
    desk.process.turn()
    found = [one for one in read_rungs(desk.connection, STUDY) if one.number == 3]
    assert [(one.rung, one.value, one.attempt) for one in found] == [(1, 0.4, 1), (2, 0.04, 2)]


def test_what_a_member_still_writes_while_it_stops_counts_no_more(desk: Desk) -> None:
    exploit(desk)
    desk.report(3, 25, 0.9)
    desk.work()
    desk.process.turn()
    assert desk.trial(3).rung == 1
    # Its donor had been ahead of it.
    desk.report(3, 30, 0.1)
    desk.process.turn()
    assert {one.rung for one in read_rungs(desk.connection, STUDY) if one.number == 3} == {1}


def test_a_population_waits_for_the_member_that_is_between_two_runs(desk: Desk) -> None:
    exploit(desk)
    pass_milestone(desk, 2)
    desk.process.turn()
    assert [one.state.value for one in desk.trials[:3]] == ["running"] * 3


def test_a_member_whose_donor_is_refused_goes_on_from_its_own_checkpoint(desk: Desk) -> None:
    exploit(desk)
    desk.carry_out()
    desk.process.turn()
    assert desk.refuse("resume", kind="no_checkpoint") == 1
    desk.process.turn()
    assert [(one.verb, one.args) for one in desk.pending()] == [("resume", {"set": dict(desk.trial(3).params)})]
    desk.work()
    worst = desk.trial(3)
    assert (worst.state, worst.parent) == (TrialState.RUNNING, None)
    newest = desk.attempts(3)[-1]
    assert newest["from"] is None and newest["params"]["rate"] == worst.params["rate"]


def test_a_stop_that_is_refused_is_asked_for_again(desk: Desk) -> None:
    exploit(desk)
    assert desk.refuse("stop") == 1
    desk.work()
    assert desk.trial(3).state is TrialState.RUNNING and len(desk.attempts(3)) == 2


def test_a_member_between_two_runs_is_not_started_in_a_study_that_stops(desk: Desk) -> None:
    exploit(desk)
    with transaction(desk.connection):
        rows.move_study(desk.connection, desk.study, StudyState.STOPPING, cause="enough", actor="me", now=desk.wall)
    desk.work()
    assert desk.study.state is StudyState.STOPPED and set(desk.states()) == {"stopped"}
    assert len(desk.attempts(3)) == 1


# --- pins -------------------------------------------------------------------------------------------------------------


def write_whole(path: Path, text: str = "state") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state", text)
    return path


def test_a_pin_holds_the_shards_and_the_checksum_of_a_checkpoint(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "step_10.pt")
    beside = {"step_10.rank1.pt", "step_10.meta.json"}
    for name in (*beside, "step_100.pt", "step_20.pt"):
        (tmp_path / name).write_text(name)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (tmp_path / "step_10.pt.sha256").write_text(f"{digest}  step_10.pt\n")
    (tmp_path / "step_10.optimizer").mkdir()
    (tmp_path / "step_10.optimizer" / "shard_0").write_text("0")
    pinned = donors.pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source)
    assert pinned is not None and pinned.path.read_bytes() == source.read_bytes()
    names = {one.name for one in pinned.path.parent.iterdir()}
    assert names == beside | {"step_10.pt", "step_10.pt.sha256", "step_10.optimizer"}
    assert (pinned.path.parent / "step_10.optimizer" / "shard_0").read_text() == "0"


def test_a_pin_holds_the_shards_of_a_compressed_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "step_10.pt.gz"
    source.write_bytes(gzip.compress(write_whole(tmp_path / "step_10").read_bytes()))
    (tmp_path / "step_10").unlink()
    (tmp_path / "step_10.shards").mkdir()
    (tmp_path / "step_10.shards" / "rank_0").write_text("0")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (source, tmp_path / "step_10.shards/rank_0")]
    lines = zip(digests, ("step_10.pt.gz", "step_10.shards/rank_0"), strict=True)
    (tmp_path / "step_10.pt.gz.sha256").write_text("".join(f"{digest}  {name}\n" for digest, name in lines))
    pinned = donors.pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source)
    assert pinned is not None
    assert (pinned.path.parent / "step_10.shards" / "rank_0").read_text() == "0"


def test_the_pin_that_a_member_may_still_load_stays(tmp_path: Path) -> None:
    pinned = []
    for milestone in (1, 2, 3):
        source = write_whole(tmp_path / f"step_{milestone}.pt")
        pinned.append(donors.pin(tmp_path / "pins", Exploit(3, 0, {}), milestone, source))
        source.unlink()
    assert [one is not None and one.path.exists() for one in pinned] == [False, True, True]


def test_a_donor_whose_checkpoint_is_gone_gives_nothing(tmp_path: Path) -> None:
    assert donors.pin(tmp_path / "pins", Exploit(3, 0, {}), 1, tmp_path / "step_10.pt") is None


def rewrite(path: Path) -> None:
    """Write other content into the very file."""
    other = write_whole(path.with_suffix(".other"), "another state").read_bytes()
    with path.open("r+b") as file:
        file.write(other)
        file.truncate()


def test_a_checkpoint_without_its_step_in_its_name_is_copied(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "last.pt")
    before = source.read_bytes()
    pinned = donors.pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source)
    rewrite(source)
    assert pinned is not None and pinned.path.read_bytes() == before != source.read_bytes()


def test_a_checkpoint_that_is_not_whole_is_no_pin(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "last.pt")
    source.write_bytes(source.read_bytes()[:-10])
    assert donors.pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source) is None


def test_a_pin_that_was_written_again_is_not_gone_on_from(desk: Desk) -> None:
    exploit(desk)
    pinned = Path(desk.trial(3).sampler["exploit"]["from"])
    rewrite(pinned)
    desk.work()
    newest = desk.attempts(3)[-1]
    assert newest["from"] is None and desk.trial(3).parent is None
    assert newest["params"]["rate"] == desk.trial(3).params["rate"]


def test_pins_go_with_the_study_and_stay_while_it_may_go_on(desk: Desk) -> None:
    exploit(desk)
    pins = desk.workspace.studies / STUDY / donors.PINS
    desk.work()
    for trial in desk.trials:
        desk.end(trial.number, RunState.SUCCEEDED)
    assert list(pins.iterdir())
    desk.work()
    assert desk.study.state is StudyState.FINISHED and not pins.exists()


# --- who is compared --------------------------------------------------------------------------------------------------


def test_nothing_is_compared_at_the_end_of_the_training(workspace: Workspace, connection: sqlite3.Connection) -> None:
    population = replace(POPULATION.pbt, length=20) if POPULATION.pbt is not None else None
    desk = Desk(workspace, connection, replace(POPULATION, pbt=population))
    desk.work()
    pass_milestone(desk, 2)
    desk.process.turn()
    assert desk.states() == ["running"] * 4


def test_a_member_that_has_ended_is_compared_and_gives(desk: Desk) -> None:
    pass_milestone(desk, 1)
    desk.save(0, 100)
    desk.end(0, RunState.SUCCEEDED)
    desk.process.turn()
    assert desk.states() == ["complete", "running", "running", "stopping"]
    assert desk.trial(3).sampler["exploit"]["donor"] == 0
    # What it saved at its very end leaves nothing to train.
    assert "step_10.pt" in desk.trial(3).sampler["exploit"]["from"]


def test_nobody_goes_on_from_the_end_of_the_training(workspace: Workspace, connection: sqlite3.Connection) -> None:
    assert POPULATION.pbt is not None
    desk = Desk(workspace, connection, replace(POPULATION, pbt=replace(POPULATION.pbt, length=100)))
    desk.work()
    pass_milestone(desk, 1)
    # Its run goes on for a moment after its last step.
    desk.report(0, 99, 0.01)
    desk.save(0, 100)
    desk.process.turn()
    assert desk.trial(3).sampler["exploit"]["donor"] == 0 and desk.trial(3).sampler["exploit"]["step"] == 10


def test_milestones_that_pass_while_no_process_lives_are_compared_by_the_next_one(desk: Desk) -> None:
    for milestone in (1, 2, 3):
        pass_milestone(desk, milestone)
    desk.end(1, RunState.SUCCEEDED)
    desk.restart()
    desk.process.turn()
    assert desk.states() == ["running", "complete", "running", "stopping"]
    assert desk.trial(3).sampler["exploit"]["milestone"] == 3 and desk.trial(3).sampler["exploit"]["donor"] == 0
    found = {(one.number, one.rung): one.value for one in read_rungs(desk.connection, STUDY)}
    assert found == {
        (number, rung): pytest.approx(0.1 * (number + 1) / rung) for number in range(4) for rung in (1, 2, 3)
    }


def test_the_last_member_that_trains_is_compared_with_those_that_ended_meanwhile(desk: Desk) -> None:
    pass_milestone(desk, 1)
    for milestone in (2, 3):
        for number in range(3):
            desk.report(number, milestone * 10 - 1, 0.1 * (number + 1) / milestone)
            desk.save(number, milestone * 10)
    for number in range(3):
        desk.end(number, RunState.SUCCEEDED)
    desk.restart()
    desk.process.turn()
    assert desk.states() == ["complete"] * 3 + ["stopping"]
    plan = desk.trial(3).sampler["exploit"]
    assert (plan["milestone"], plan["donor"], plan["step"]) == (1, 0, 10)


def test_a_member_that_has_ended_goes_on_from_nobody(desk: Desk) -> None:
    pass_milestone(desk, 1)
    desk.end(3, RunState.SUCCEEDED)
    desk.process.turn()
    assert desk.states() == ["running"] * 3 + ["complete"]


def test_a_member_that_begins_again_has_its_first_parameters(desk: Desk) -> None:
    first = desk.trial(3).params
    exploit(desk)
    desk.work()
    assert desk.trial(3).params != first
    desk.end(3, RunState.FAILED, incident="nccl_error")
    desk.process.turn()
    for _ in range(2):
        desk.refuse("resume", kind="no_checkpoint")
        desk.process.turn()
    assert [one.verb for one in desk.pending()] == ["restart"]
    assert desk.trial(3).params == first and desk.trial(3).parent is None


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_a_lineage_goes_through_the_runs_of_the_donors(desk: Desk) -> None:
    first = [one.params for one in desk.trials]
    exploit(desk)
    desk.work()
    second = desk.trial(3).params
    # Trial 3 becomes the best, and gives to trial 2.
    for number in range(4):
        for step in (15, 19, 20):
            desk.report(number, step, 0.01 if number == 3 else 0.1 * (number + 1))
        desk.save(number, 20, attempt=2 if number == 3 else 1)
    desk.work()
    third = desk.trial(2).params
    assert (desk.trial(2).parent, desk.trial(2).generation) == (3, 2)
    assert lineage(desk.connection, desk.trials, 2) == [Phase(10, first[0]), Phase(20, second), Phase(None, third)]
    assert lineage(desk.connection, desk.trials, 3) == [Phase(10, first[0]), Phase(None, second)]
    assert lineage(desk.connection, desk.trials, 1) == [Phase(None, first[1])]
    for trial in desk.trials:
        desk.end(trial.number, RunState.SUCCEEDED)
    desk.work()
    desk.ask("rm", desk.trial(0).run_id)
    with pytest.raises(LineageError):
        lineage(desk.connection, desk.trials, 2)


@pytest.mark.parametrize(
    "segment",
    [
        {"attempt": 1, "donor": 3, "donor_attempt": 1, "step": 10},
        {"attempt": 1, "donor": 99, "donor_attempt": 1, "step": 10},
        {"attempt": 1, "donor": 1, "step": 10},
        {"attempt": 1, "donor": 1, "donor_attempt": None, "step": 10},
    ],
    ids=["leads back", "unknown donor", "no donor's attempt", "no number"],
)
def test_a_lineage_that_does_not_fit_together_is_an_error(desk: Desk, segment: dict[str, int | None]) -> None:
    trials = [replace(one, sampler={"lineage": [segment]}) if one.number == 3 else one for one in desk.trials]
    with pytest.raises(LineageError):
        lineage(desk.connection, trials, 3)


def test_a_lineage_is_a_profile_with_phases(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "net.yaml").write_text(
        "name: net\nlauncher: python\nscript: net.py\ngpus: 0\nparams: {rate: 0.5, steps: {default: 9, min: 1}}\n"
        "checkpoints: {dir: '{run_dir}/c', pattern: 'step_*.pt', resume: '--resume {checkpoint}'}\n"
    )
    base = resolve(load(tmp_path / "net.yaml"))
    phases = [Phase(10, {"rate": 0.1}), Phase(None, {"rate": 0.2})]
    text = phased_profile(base, (tmp_path / "net.yaml").read_text(), "s-1-t2", {"steps": 50}, phases)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "replay.yaml").write_text(text)
    again = resolve(load(elsewhere / "replay.yaml"))
    assert list(again.phases) == phases and dict(again.params) == {"rate": 0.1, "steps": 50}
    assert (again.program, again.workdir, again.checkpoints) == (base.program, base.workdir, base.checkpoints)
    for changed in ("name: [net", "- net", "", "params: [rate]"):
        with pytest.raises(ProfileChangedError):
            phased_profile(base, changed, "s-1-t2", {"steps": 50}, phases)
    assert "rate: 0.1" in phased_profile(base, "name: net\nparams:\n", "s-1-t2", {}, phases)
