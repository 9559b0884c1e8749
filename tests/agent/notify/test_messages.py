"""The wording of messages: at most ten harmless lines, without secrets, and the facts for commands."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.agent.notify import messages
from gputui.agent.notify.messages import LINE_CELLS, RunNotice
from gputui.recovery.costs import Cost
from gputui.recovery.run_history import Failure
from gputui.store.alerts import AlertView
from gputui.store.run_history import DecisionView, IncidentView
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.store.studies import StudyRecord, StudyState
from tests.texts import mentions

RUN = Run(
    "vit-3",
    1,
    "vit",
    profile="vit",
    state=RunState.FAILED,
    attempt=2,
    params={},
    spec_json="{}",
    created_at=0.0,
    ended_seconds=18_000.0,
    ended_at=20_000.0,
)
INCIDENT = IncidentView(1, "vit-3", 2, 1.0, "cuda_oom", 0, 35, "rank 0 ran out of GPU memory", ())
DECISION = DecisionView(1, 1, "vit-3", 2, 1.0, 0, "stop", (), {}, None, 0.0, "no smaller batch is left", None)
COST = Cost(120, 540.0, 0.6)
FACTS = RunNotice(
    RUN,
    20_000.0,
    "ws1",
    failure=Failure(INCIDENT, DECISION, attempt=None, next_attempt=None, cost=COST),
    cost=COST,
    step=1200,
    loss=("train/loss", 0.4321),
)
ALERT = AlertView(
    7,
    "disk",
    "error",
    subject_kind="host",
    subject_id="",
    subject_name="the host",
    run_id=None,
    raised_at=100.0,
    cleared_at=None,
    cleared_because=None,
    acknowledged_at=None,
    acknowledged_by=None,
    silenced_until=None,
    silenced_by=None,
    value=97.0,
    threshold=95.0,
    unit="%",
    sentence="The disk is 97 % full",
    remedy="remove runs",
)


def test_a_run_that_failed() -> None:
    message = messages.run_ended(FACTS, "rank 0 ran out of GPU memory; no smaller batch is left")
    assert (message.event, message.severity, message.run_id) == ("run_failed", "error", "vit-3")
    assert mentions(message.title, "vit-3", "failed", "5 h")
    values = (INCIDENT.summary, DECISION.reason, "120 steps", "9 min", "1 200", "train/loss 0.4321", "explain vit-3")
    assert mentions(message.body, *values)
    assert len(message.lines) <= messages.MOST_LINES
    facts = {"event": "run_failed", "run": "vit-3", "state": "failed", "incident": "cuda_oom", "step": "1200"}
    assert facts.items() <= message.fields.items()
    assert message.fields["loss"] == "0.4321"


@pytest.mark.parametrize(("state", "event"), [("succeeded", "run_succeeded"), ("stopped", "run_stopped")])
def test_an_end_without_an_incident_of_its_own(state: str, event: str) -> None:
    facts = replace(FACTS, run=replace(RUN, state=RunState(state), attempt=3))
    message = messages.run_ended(facts, "stopped by anna")
    assert message.event == event
    assert "stopped by anna" in message.body
    assert INCIDENT.summary not in message.body


def test_a_run_with_a_name_that_never_started() -> None:
    run = replace(RUN, name="my best", ended_seconds=None, ended_at=None, attempt=0)
    message = messages.run_ended(RunNotice(run, 1.0, "ws1"), "no GPU has 900 GiB")
    assert message.title == "vit-3 (my best) failed"
    assert message.fields["step"] == message.fields["loss"] == ""


def test_a_run_that_recovered() -> None:
    message = messages.run_recovered(replace(FACTS, run=replace(RUN, state=RunState.RUNNING, attempt=3)))
    assert message.event == "run_recovered"
    assert mentions(message.title, "vit-3", "out of GPU memory")


def test_an_empty_queue_names_what_failed() -> None:
    failed = [replace(RUN, run_id=f"bad-{number}", reason="it broke") for number in range(8)]
    message = messages.queue_empty([*failed, replace(RUN, state=RunState.SUCCEEDED)], "ws1")
    assert mentions(message.title, "8 failed", "1 succeeded")
    assert message.severity == "warning"
    assert mentions(message.body, "bad-0: it broke", "bad-4", "3 more")
    assert "bad-5" not in message.body
    assert message.fields["failed"] == "8"
    assert message.fields["ended"] == "9"


def test_a_study_that_finished() -> None:
    study = StudyRecord(
        "hunt-1",
        1,
        "hunt",
        profile="vit",
        state=StudyState.FINISHED,
        reason="40 trials done",
        spec_json="{}",
        source="",
        created_at=0.0,
        ended_at=9.0,
    )
    message = messages.study_finished(study, ["complete", "complete", "pruned"], "trial 2, loss 0.1 (lr 1)", "ws1")
    assert mentions(message.body, "40 trials", "2 complete", "1 pruned", "trial 2", "study show hunt-1")


def test_an_alert_and_its_end() -> None:
    raised = messages.alert_raised(ALERT, "ws1")
    assert (raised.event, raised.title, raised.severity) == ("alert", ALERT.sentence, "error")
    assert ALERT.remedy in raised.body
    assert raised.fields["state"] == "raised"
    over = messages.alert_over(replace(ALERT, cleared_at=220.0, cleared_because="it is back"), "ws1")
    assert mentions(over.title, ALERT.sentence)
    assert over.title != raised.title
    assert mentions(over.body, "2 min", "it is back")
    assert over.fields["state"] == "over"
    assert messages.alert_raised(replace(ALERT, rule="gpu_lost"), "ws1").event == "gpu_lost"


@pytest.mark.parametrize("text", ["a\x1b[2Jb\nc", "see --api-key hunter-22-hunter", "x" * 10_000])
def test_texts_from_outside_are_harmless(text: str) -> None:
    failure = Failure(replace(INCIDENT, summary=text), DECISION, attempt=None, next_attempt=None, cost=COST)
    message = messages.run_ended(replace(FACTS, failure=failure), text)
    for line in (message.title, *message.lines, *message.fields.values()):
        assert "\x1b" not in line
        assert "\n" not in line
        assert "hunter-22" not in line
        assert len(line) <= LINE_CELLS
