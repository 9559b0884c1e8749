"""Optuna's journal of a study: what a kill, another process and a torn line leave of it."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gputui.store.studies import TrialState
from gputui.studies import journal as journals
from gputui.studies import journal_file
from gputui.studies import spec as specs
from gputui.studies.decide import Ruling
from gputui.studies.journal import OWN, StudyJournal
from gputui.studies.journal_file import open_storage
from gputui.studies.rows import JOURNAL_FILE
from gputui.studies.spec import Constraints, Dimension, Objective, PrunerSpec, SamplerSpec, StudySpec, missing_library
from tests.studies.conftest import ask_outside
from tests.tables import table
from tests.texts import mentions

SPACE = (
    Dimension("lr", "float", 1e-4, 1e-1, log=True),
    Dimension("width", "int", 16, 64, step=16),
    Dimension("act", "choice", choices=("relu", "gelu", None)),
    Dimension("slope", "float", 0.0, 1.0, when={"act": ("relu", None)}),
)
POINT = {"lr": 0.01, "width": 16, "act": "gelu"}


def study(sampler: Any = "tpe", pruner: PrunerSpec | None = None, **changes: Any) -> StudySpec:
    spec = StudySpec("s", "net", SPACE, (Objective("loss"),), SamplerSpec(sampler), pruner or PrunerSpec("none"))
    return replace(spec, **changes)


def open_journal(spec: StudySpec, folder: Path) -> StudyJournal:
    """The journal as a new process has it."""
    return StudyJournal(spec, "s-1", open_storage(folder))


def score(params: Mapping[str, Any]) -> float:
    return abs(math.log10(params["lr"]) + 2) + params["width"] / 100


def points(spec: StudySpec, folder: Path, *, dies: bool = False, count: int = 12) -> list[dict[str, Any]]:
    """The points of trials that run one after another, where the process may die before each."""
    folder.mkdir()
    journal = open_journal(spec, folder)
    for number in range(count):
        if dies:
            journal = open_journal(spec, folder)
        journal.sample()
        params = journal.trials()[number].params
        values = (score(params), params["lr"])[: len(spec.objectives)]
        journal.end(number, Ruling(TrialState.COMPLETE, reason=None, values=values), 0.0)
    return [trial.params for trial in journal.trials()]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Any]:
    """A function that asks the dashboard's application for a page of its API."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        pytest.skip("optuna-dashboard is not installed")
    from optuna_dashboard import wsgi

    application = wsgi(open_storage(tmp_path))

    def get(path: str) -> Any:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "after=0", "SERVER_NAME": "x",
                   "SERVER_PORT": "80", "wsgi.url_scheme": "http"}  # fmt: skip
        return json.loads(b"".join(application(environ, lambda *_: None)))

    return get


@table("kind", ["random", "tpe", "nsga2"])
def test_a_process_that_dies_asks_for_the_same_points(kind: str, tmp_path: Path) -> None:
    several = (Objective("loss"), Objective("lr", "maximize"))
    objectives = several if kind == "nsga2" else (Objective("loss"),)
    spec = study(kind, objectives=objectives)
    if kind == "tpe":
        spec = replace(spec, sampler=SamplerSpec("tpe", startup=4))
    suggested = points(spec, tmp_path / "lives")
    assert suggested == points(spec, tmp_path / "dies", dies=True)
    assert len({json.dumps(point, sort_keys=True) for point in suggested}) == 12
    assert all(("slope" in point) is (point["act"] != "gelu") for point in suggested)


@table("kind", ["qmc", "cmaes", "gp"])
def test_other_samplers_continue_after_a_death_with_new_points(kind: str, tmp_path: Path) -> None:
    suggested = points(study(kind), tmp_path / "s", dies=True)
    assert len({json.dumps(point, sort_keys=True) for point in suggested}) >= 11
    # CMA-ES would keep its state as a pickle, which a process outside could replace.
    assert "optimizer" not in (tmp_path / "s" / JOURNAL_FILE).read_text()


@table("kind", ["halving", "hyperband", "median"])
def test_a_process_that_dies_each_time_cuts_the_same_trials_short(kind: Any, tmp_path: Path) -> None:
    spec = study("random", PrunerSpec(kind, length=27, rungs=27, startup=2))

    def story(folder: Path, *, dies: bool) -> list[tuple[int, int]]:
        """(trial, rung) of all that are cut short; they run one after another."""
        folder.mkdir()
        journal = open_journal(spec, folder)
        cut = []
        for number in range(20):
            journal.add(POINT, "sampled")
            for rung in range(1, 27):
                if dies:
                    journal = open_journal(spec, folder)
                journal.report(number, rung, (number * 7 % 20) / 20 + 1 / rung)
                if journal.should_prune(number):
                    cut.append((number, rung))
                    break
            is_cut = bool(cut) and cut[-1][0] == number
            ruled = (
                Ruling(TrialState.PRUNED)
                if is_cut
                else Ruling(TrialState.COMPLETE, reason=None, values=(float(number),))
            )
            journal.end(number, ruled, 0.0)
        return cut

    events = story(tmp_path / "dies", dies=True)
    assert events == story(tmp_path / "lives", dies=False)
    assert 5 < len(events) < 20


@table(
    ("state", "values", "name"),
    [
        (TrialState.INFEASIBLE, (), "PRUNED"), (TrialState.INFEASIBLE, (0.5,), "COMPLETE"),
        (TrialState.FAILED, (), "FAIL"), (TrialState.STOPPED, (), "FAIL"),
    ],
)  # fmt: skip
def test_a_verdict_is_given_once_also_by_a_process_that_dies_in_between(
    state: TrialState, values: tuple[float, ...], name: str, tmp_path: Path
) -> None:
    spec = study(constraints=Constraints(step_seconds=1.0))
    journal = open_journal(spec, tmp_path)
    journal.add(POINT, "sampled")
    broken = (0.5,) if values else ()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StudyJournal, "apply_verdict", lambda *_: None)
        journal.end(0, Ruling(state, "why", values, broken), 1.0)
    journal = open_journal(spec, tmp_path)
    journal.end(0, Ruling(TrialState.COMPLETE, reason=None, values=(9.0,)), 2.0)
    (trial,) = journal.trials()
    assert trial.state.name == name
    assert trial.values == (list(values) or None)
    assert list(trial.constraints.values()) == list(broken)
    assert trial.user_attrs[journals.VERDICT]["state"] == state
    journal.end(0, Ruling(TrialState.FAILED), 3.0)
    assert journal.trials()[0].state.name == name


def test_a_torn_line_is_removed_and_a_killed_holder_keeps_the_lock_for_seconds(tmp_path: Path) -> None:
    open_journal(study(), tmp_path).add(POINT, "sampled")
    file = tmp_path / JOURNAL_FILE
    with file.open("a") as torn:
        torn.write('{"op_code": 4, "study')
    file.with_name(JOURNAL_FILE + ".lock").symlink_to(file)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_file, "LOCK_SECONDS", 3)
        journal = open_journal(study(), tmp_path)
    journal.add(POINT, "sampled")
    assert [trial.user_attrs[OWN]["origin"] for trial in open_journal(study(), tmp_path).trials()] == ["sampled"] * 2


def test_a_line_that_was_cut_and_appended_to_costs_that_line_alone(tmp_path: Path) -> None:
    journal = open_journal(study(), tmp_path)
    file = tmp_path / JOURNAL_FILE
    with file.open("a") as torn:
        torn.write('{"op_code": 4, "study')  # by another process, while this one lives
    journal.add(POINT, "sampled")
    assert len(open_journal(study(), tmp_path).trials()) == 1
    with file.open("a") as torn:
        torn.write('{"op_code": 4, "study{"op_code": 4}\n')
    open_journal(study(), tmp_path).add(POINT, "sampled")
    assert len(open_journal(study(), tmp_path).trials()) == 2


@table("line", [
    b"[]", b"5", b'{"op_code": 99}', b'{"op_code": 4}', b'{"op_code": 4, "study_id": 0}',
    b'{"op_code": 8, "trial_id": 0}', b"\xff", b"[" * 100_000, b"not json",
])  # fmt: skip
def test_a_line_that_is_no_entry_is_moved_away_and_named(line: bytes, tmp_path: Path) -> None:
    open_journal(study(), tmp_path).add(POINT, "sampled")
    file = tmp_path / JOURNAL_FILE
    said = list[str]()
    before = file.read_bytes()
    file.write_bytes(before + line + b"\n")
    ask = [json.loads(line) for line in before.splitlines()][-1]
    with file.open("ab") as appended:
        appended.write(json.dumps(ask).encode() + b"\n")
    journal = StudyJournal(study(), "s-1", open_storage(tmp_path, said.append))
    assert [trial.params for trial in journal.trials()] == [POINT] * 2
    number = len(before.splitlines()) + 1
    assert len(said) == 1
    assert mentions(said[0], file, f"line {number}", "journal.broken")
    assert (tmp_path / "journal.broken").read_bytes() == line + b"\n"


def test_a_lock_by_a_relative_path_ends_with_its_holder(tmp_path: Path) -> None:
    open_journal(study(), tmp_path)
    (tmp_path / f"{JOURNAL_FILE}.lock").symlink_to(f"elsewhere/{JOURNAL_FILE}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_file, "LOCK_SECONDS", 3)
        open_journal(study(), tmp_path).add(POINT, "sampled")
    assert len(open_journal(study(), tmp_path).trials()) == 1


@table(("direction", "worst"), [("minimize", math.inf), ("maximize", -math.inf)])
def test_what_an_infeasible_point_reported_is_the_worst(direction: Any, worst: float, tmp_path: Path) -> None:
    folder = tmp_path / direction
    folder.mkdir()
    journal = open_journal(study(objectives=(Objective("loss", direction),)), folder)
    journal.add(POINT, "sampled")
    journal.report(0, 1, 0.5)
    journal.end(0, Ruling(TrialState.INFEASIBLE, "ran out of memory"), 1.0)
    (trial,) = journal.trials()
    assert (trial.state.name, trial.intermediate_values) == ("PRUNED", {1: worst})


# --- other processes --------------------------------------------------------------------------------------------------


def test_a_python_process_asks_and_tells_beside_gputui(tmp_path: Path) -> None:
    journal = open_journal(study(), tmp_path)
    journal.sample()
    assert ask_outside(tmp_path / JOURNAL_FILE, 0.5, 0.25) == "3"
    journal.sample()
    trials = journal.trials()
    assert list(journal.own_notes()) == [0, 3]
    assert [trial.value for trial in trials[1:3]] == [0.5, 0.25]
    assert journal.study.best_trial.number == 2


def test_the_dashboard_lists_the_trials_of_a_living_study(tmp_path: Path, dashboard: Any) -> None:
    journal = open_journal(study(pruner=PrunerSpec("median", length=10, rungs=10)), tmp_path)
    journal.sample()
    journal.report(0, 1, 0.75)
    (listed,) = dashboard("/api/studies")["study_summaries"]
    assert listed["study_name"] == "s-1"
    journal.sample()
    journal.end(0, Ruling(TrialState.COMPLETE, reason=None, values=(0.5,)), 0.0)
    trials = dashboard(f"/api/studies/{listed['study_id']}")["trials"]
    assert [trial["state"] for trial in trials] == ["Complete", "Running"]
    assert trials[0]["intermediate_values"] == [{"step": 1, "value": 0.75}]


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs.importlib.util, "find_spec", lambda name: None)
    assert missing_library(study()) is None
    assert "pip install cmaes" in (missing_library(study("cmaes")) or "")
