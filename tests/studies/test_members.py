"""Decisions of a population's process, step by step."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from gputui.runs.spec import Phase
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, TrialState, read_rungs
from gputui.studies.export import LineageError, StudyExportError, lineage_phases, phased_profile
from gputui.studies.pbt import Exploit
from gputui.studies.population import pin
from gputui.studies.process import WITHOUT_DONOR_SECONDS
from gputui.studies.rows import PINS
from tests.studies.conftest import POPULATION, STUDY, Begin, StudyHome
from tests.texts import mentions


@pytest.fixture
def home(begin: Begin) -> StudyHome:
    """Four members that train; trial 0 is the best by far, and trial 3 the worst."""
    home = begin(POPULATION)
    home.work()
    assert home.states() == ["running"] * 4
    return home


def pass_milestone(home: StudyHome, milestone: int, **saved: Any) -> None:
    """All members train up to a milestone, and save a checkpoint there."""
    for trial in home.trials:
        if trial.state is TrialState.RUNNING:
            for step in ((milestone - 1) * 10 + 5, milestone * 10 - 1, milestone * 10):
                home.report(trial.number, step, 0.1 * (trial.number + 1) / milestone)
            home.save(trial.number, milestone * 10, **saved)


def exploit(home: StudyHome, milestone: int = 1) -> None:
    """The worst member is asked to stop, to go on from the best."""
    pass_milestone(home, milestone)
    home.process.turn()
    assert home.trial(3).state is TrialState.STOPPING


def write_whole(path: Path, text: str = "state") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state", text)
    return path


def rewrite(path: Path) -> None:
    """Write other content into the very file."""
    whole_file = write_whole(path.with_suffix(".other"), "another state").read_bytes()
    with path.open("r+b") as file:
        file.write(whole_file)
        file.truncate()


def test_the_worst_member_goes_on_from_a_pin_of_the_best_one(home: StudyHome) -> None:
    exploit(home)
    home.work()
    worst = home.trial(3)
    assert (worst.state, worst.parent, worst.generation) == (TrialState.RUNNING, 0, 1)
    newest = home.attempts(3)[-1]
    assert newest["params"]["rate"] == worst.params["rate"]
    assert Path(newest["from"]).parent.parent == home.workspace.studies / STUDY / PINS


def test_what_recovery_would_resume_from_is_given_though_its_format_cannot_be_checked(home: StudyHome) -> None:
    pass_milestone(home, 1, is_known=False)
    home.process.turn()
    home.work()
    assert home.trial(3).parent == 0
    assert Path(home.attempts(3)[-1]["from"]).read_text()


@pytest.mark.parametrize(
    "saved", [{"is_known": False, "is_settled": False}, {"verdict": "struck", "why": "came after the trouble"}]
)
def test_a_population_without_a_checkpoint_to_give_pauses_with_the_reason(
    home: StudyHome, saved: dict[str, Any]
) -> None:
    pass_milestone(home, 1, **saved)
    home.process.turn()
    assert home.study.state is StudyState.RUNNING
    home.now += WITHOUT_DONOR_SECONDS
    home.process.turn()
    assert home.study.state is StudyState.PAUSED
    assert mentions(home.study.reason or "", "milestone 1", "step_10.pt")
    assert home.states() == ["running"] * 4


def test_a_population_that_never_exchanged_anything_says_so_at_its_end(home: StudyHome) -> None:
    for trial in home.trials:
        home.report(trial.number, 5, 0.1)
        home.end(trial.number, RunState.SUCCEEDED)
    home.work()
    assert home.study.state is StudyState.FINISHED
    assert mentions(home.study.reason or "", "no member has continued")


def test_what_a_member_reached_before_it_left_its_training_counts_no_more(home: StudyHome) -> None:
    pass_milestone(home, 1)
    # Trial 3 is ahead of the others when the milestone is decided.
    for step in (20, 30):
        home.report(3, step, 0.9)
    home.process.turn()
    assert home.trial(3).state is TrialState.STOPPING
    assert {rung.rung for rung in read_rungs(home.connection, STUDY) if rung.number == 3} == {1}
    home.work()
    # Its next attempt begins from the donor's step 10.
    home.report(3, 15, 0.05)
    home.process.turn()
    assert home.trial(3).rung == 1
    home.report(3, 19, 0.04)
    home.process.turn()
    rungs = [rung for rung in read_rungs(home.connection, STUDY) if rung.number == 3]
    assert [(rung.rung, rung.value, rung.attempt) for rung in rungs] == [(1, 0.4, 1), (2, 0.04, 2)]


# --- pins -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_its_step_in_its_name_is_copied(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "last.pt")
    before = source.read_bytes()
    pinned = pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source)
    rewrite(source)
    assert pinned is not None
    assert pinned.read_bytes() == before != source.read_bytes()


def test_a_checkpoint_that_is_not_whole_is_no_pin(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "last.pt")
    source.write_bytes(source.read_bytes()[:-10])
    assert pin(tmp_path / "pins", Exploit(3, 0, {}), 1, source) is None


def test_pins_go_with_the_study_and_stay_while_it_may_go_on(home: StudyHome) -> None:
    exploit(home)
    pins = home.workspace.studies / STUDY / PINS
    home.work()
    for trial in home.trials:
        home.end(trial.number, RunState.SUCCEEDED)
    assert list(pins.iterdir())
    home.work()
    assert home.study.state is StudyState.FINISHED
    assert not pins.exists()


# --- who is compared --------------------------------------------------------------------------------------------------


def test_a_member_that_has_ended_is_compared_and_gives(home: StudyHome) -> None:
    pass_milestone(home, 1)
    home.save(0, 100)
    home.end(0, RunState.SUCCEEDED)
    home.process.turn()
    assert home.states() == ["complete", "running", "running", "stopping"]
    assert home.trial(3).population["exploit"]["donor"] == 0
    # A checkpoint of the last step leaves nothing to train, so the checkpoint before it is given.
    assert "step_10.pt" in home.trial(3).population["exploit"]["from"]


def test_a_member_that_has_ended_goes_on_from_nobody(home: StudyHome) -> None:
    pass_milestone(home, 1)
    home.end(3, RunState.SUCCEEDED)
    home.process.turn()
    assert home.states() == ["running"] * 3 + ["complete"]


def test_milestones_that_pass_while_no_process_lives_are_compared_by_the_next_one(home: StudyHome) -> None:
    for milestone in (1, 2, 3):
        pass_milestone(home, milestone)
    home.end(1, RunState.SUCCEEDED)
    home.restart()
    home.process.turn()
    assert home.states() == ["running", "complete", "running", "stopping"]
    assert home.trial(3).population["exploit"]["milestone"] == 3
    assert home.trial(3).population["exploit"]["donor"] == 0
    values = {(rung.number, rung.rung): rung.value for rung in read_rungs(home.connection, STUDY)}
    assert values == {
        (number, rung): pytest.approx(0.1 * (number + 1) / rung) for number in range(4) for rung in (1, 2, 3)
    }


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_a_lineage_goes_through_the_runs_of_the_donors(home: StudyHome) -> None:
    first = [trial.params for trial in home.trials]
    exploit(home)
    home.work()
    second = home.trial(3).params
    # Trial 3 becomes the best, and gives to trial 2.
    for number in range(4):
        for step in (15, 19, 20):
            home.report(number, step, 0.01 if number == 3 else 0.1 * (number + 1))
        attempt = 2 if number == 3 else 1
        home.save(number, 20, attempt=attempt)
    home.work()
    third = home.trial(2).params
    assert (home.trial(2).parent, home.trial(2).generation) == (3, 2)
    assert lineage_phases(home.connection, home.trials, 2) == [
        Phase(10, first[0]),
        Phase(20, second),
        Phase(None, third),
    ]
    assert lineage_phases(home.connection, home.trials, 3) == [Phase(10, first[0]), Phase(None, second)]
    assert lineage_phases(home.connection, home.trials, 1) == [Phase(None, first[1])]
    for trial in home.trials:
        home.end(trial.number, RunState.SUCCEEDED)
    home.work()
    home.ask("rm", home.trial(0).run_id)
    with pytest.raises(LineageError):
        lineage_phases(home.connection, home.trials, 2)


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
    assert list(again.phases) == phases
    assert dict(again.params) == {"rate": 0.1, "steps": 50}
    assert (again.program, again.workdir, again.checkpoints) == (base.program, base.workdir, base.checkpoints)
    for changed in ("name: [net", "- net", "", "params: [rate]"):
        with pytest.raises(StudyExportError):
            phased_profile(base, changed, "s-1-t2", {"steps": 50}, phases)
    assert "rate: 0.1" in phased_profile(base, "name: net\nparams:\n", "s-1-t2", {}, phases)
    profile = "name: net\nenv: {VERSION: 1.10, FLAG: yes, MASK: 0x10}\nparams: {seed: 010}\n"
    written = yaml.safe_load(phased_profile(base, profile, "s-1-t2", {}, phases))
    assert written["env"] == {"VERSION": "1.10", "FLAG": "yes", "MASK": "0x10"}
    assert written["params"]["seed"] == 10
