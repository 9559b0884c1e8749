"""A study's report: its values, a command that is the winner's, its pictures, and text that harms no page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import msgspec
from msgspec import structs

from gputui.store.studies import RungValue, StudyRecord, StudyState, TrialRecord, TrialState
from gputui.studies.report import StudyFindings, contents, markdown, page, winner_command
from gputui.studies.results import StudyResults
from gputui.studies.spec import Dimension, Objective, PrunerSpec, StudySpec
from tests.studies.conftest import trial

SPEC = StudySpec(
    name="lr", profile="net",
    space=(Dimension("lr", "float", 0.0, 9.0), Dimension("kind", "choice", choices=("a b", "a", "b"))),
    objectives=(Objective("loss"),), pruner=PrunerSpec("median", length=100.0, rungs=10), params={"steps": 50},
)  # fmt: skip
STUDY = StudyRecord(
    "lr-1",
    1,
    "lr",
    profile="net",
    state=StudyState.FINISHED,
    reason="its 4 trials are done",
    spec_json="{}",
    source="",
    created_at=0.0,
    ended_at=7200.0,
)
TRIALS = [
    trial(0, 0.5, params={"lr": 0.1, "kind": "a b"}),
    trial(1, 0.25, params={"lr": 0.012345678, "kind": "a b"}),
    trial(2, state=TrialState.FAILED, params={"lr": 0.9, "kind": "a b"}),
]


def findings(
    trials: Sequence[TrialRecord] = TRIALS, study: StudyRecord = STUDY, spec: StudySpec = SPEC
) -> StudyFindings:
    rungs = {
        trial.number: [
            RungValue(trial.number, rung, 10 * rung - 1, value=1.0 / rung, attempt=1, at=0.0) for rung in (1, 2, 3)
        ]
        for trial in trials
    }
    return StudyFindings(StudyResults(study, spec, trials, rungs, 1.5, 7200.0), 9000.0, ["net", "--gpus", "2"])


def rows_under(heading: str, text: str) -> list[str]:
    """The first cells of the table under a heading."""
    lines = text.splitlines()
    section = lines[lines.index(heading) + 1 :]
    end = next((place for place, line in enumerate(section) if line.startswith("## ")), len(section))
    return [line.split("|")[1].strip() for line in section[:end] if line.startswith("| ")][2:]


def test_the_commands_set_the_best_points_and_the_studys_own_values() -> None:
    spec = replace(SPEC, params={"steps": 50, "amp": True, "crop": None})
    argv = shlex.split(winner_command(findings(spec=spec), TRIALS[1]))
    assert argv[:6] == ["gputui", "run", "net", "--gpus", "2", "--set"]
    assert argv[6::2] == ["steps=50", "amp=true", "crop=null", "lr=0.012345678", "kind=a b"]
    of_command = structs.replace(findings(), run_words=["--gpus", "1"], typed=["train.py", "--lr", "1"])
    assert winner_command(of_command, TRIALS[1]).startswith("gputui run --gpus 1 --set steps=50 ")
    assert winner_command(of_command, TRIALS[1]).endswith(" -- train.py --lr 1")
    text = markdown(findings())
    assert rows_under("## Best trials", text) == ["1", "0"]
    assert rows_under("## Not complete", text) == ["2"]
    assert text.index(winner_command(findings(), TRIALS[1])) < text.index(winner_command(findings(), TRIALS[0]))


def test_each_of_several_objectives_is_reported_and_each_member_of_the_front_can_be_trained() -> None:
    spec = replace(SPEC, objectives=(Objective("loss"), Objective("size", "maximize")), pruner=PrunerSpec("none"))
    # The loss follows lr, the size follows the kind.
    trials = [
        trial(number, number / 10, 1.0 + number % 2, params={"lr": number / 10, "kind": "ab"[number % 2]})
        for number in range(40)
    ]
    report = findings(trials, spec=spec)
    text = markdown(report)
    assert rows_under("## Pareto front", text) == ["0", "1"]
    assert "the best," not in text
    assert all((winner_command(report, trial) in text) is (trial.number < 2) for trial in trials)
    assert rows_under("## What mattered for loss", text)[0] == "lr"
    assert set(rows_under("## What mattered for size", text)) == {"lr", "kind"}
    assert {"values-of-loss.svg", "values-of-size.svg", "over-lr-of-size.svg"} <= contents(report).keys()


def test_the_files_refer_to_each_other_and_the_page_to_nothing() -> None:
    many = [trial(number, 0.5 + number / 10, params={"lr": 0.1 * (number + 1), "kind": "a b"}) for number in range(9)]
    files = contents(findings(many))
    linked = set(re.findall(r"\]\((\S+\.svg)\)", files["report.md"].decode()))
    assert linked == {name for name in files if name.endswith(".svg")}
    assert linked == {"values.svg", "curves.svg", "over-lr.svg", "over-kind.svg"}
    for name in linked:
        root = ElementTree.fromstring(files[name])
        assert root.findall("{http://www.w3.org/2000/svg}polyline")
    text = files["report.html"].decode()
    assert text.count("<svg") == len(linked)
    assert not re.search(r"(?:src|href)=|<script", text)


def test_text_from_outside_is_harmless() -> None:
    bad = "<script>alert(1)</script>\x1b[31m|x`"
    spec = replace(SPEC, objectives=(Objective(bad),), space=(Dimension(bad, "float", 0.0, 1.0),))
    trials = [trial(number, 0.1 * number, params={bad: 0.1 * number}) for number in range(9)]
    trials.append(msgspec.structs.replace(trial(9, state=TrialState.FAILED, params={bad: 0.9}), reason=bad))
    study = msgspec.structs.replace(STUDY, study_id=bad, reason=bad)
    text = page(findings(trials, study, spec))
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\x1b" not in markdown(findings(trials, study, spec))
