"""The story of a run in plain sentences."""

# ruff: noqa: E501 - paragraphs are one line each

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from gputui.recovery.costs import Cost
from gputui.recovery.resumptions import Resumption, resumptions
from gputui.recovery.run_history import RunHistory
from gputui.recovery.story import tell
from gputui.store.attempts import Attempt
from gputui.store.metrics.step_lines import StepLines
from gputui.store.placements import PlacementView
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.recovery.histories import FIRST_ATTEMPT, Lines, attempt, decision, incident, move, second_attempt
from tests.tables import table
from tests.texts import mentions

NOW = 1000.0

PLACED = PlacementView("ended", nodes=("n1",), gpus=2, queued_seconds=120.0, ran_seconds=60.0)


def run(state: str, **values: Any) -> Run:
    fields: dict[str, Any] = {
        "run_id": "digits-1", "sequence": 1, "name": "digits", "profile": "digits-ddp",
        "state": RunState(state), "attempt": 1, "params": {}, "spec_json": json.dumps({"nproc": 2}),
        "created_at": 1.0, "queued_at": 1.0, "started_at": 2.0,
    }  # fmt: skip
    return Run(**fields | values)


def story(
    of_run: Run,
    attempts: list[Attempt],
    incidents: list[IncidentView],
    decisions: list[DecisionView],
    transitions: list[TransitionView],
    *,
    now: float,
    costs: Mapping[int, Cost] | None = None,
    went_on: Mapping[int, Resumption] | None = None,
) -> list[str]:
    history = RunHistory(
        of_run,
        attempts,
        incidents,
        decisions=decisions,
        transitions=transitions,
        checkpoints=[],
        lines=cast("StepLines", Lines()),
    )
    if went_on is None:
        went_on = resumptions(attempts)
    return tell(history, history.failures_with(costs or {}), went_on, now=now)


def alike_failures(count: int) -> list[str]:
    """The story of a run whose attempts all ran out of memory at step 60, with half the batch each time."""
    rows = range(1, count + 1)
    attempts = [
        attempt(number, at=100.0 * number, last=60, params={"batch_size": 128 >> number, "lr": 0.1}) for number in rows
    ]
    cause = "ran out of GPU memory (tried to allocate 2.00 GiB, train.py:18)"
    incidents = [incident(n, n, "cuda_oom", step=60, rank=n % 2, summary=f"rank {n % 2} {cause}") for n in rows]
    decisions = [decision(n, n, at=100.0 * n + 50, reason=f"did {n}") for n in rows[:-1]]
    decisions.append(decision(count, count, at=999.0, verdict="stop", reason="nothing helps"))
    paid = {n: Cost(10, 20.0, 0.0) for n in rows[:-1]}
    return story(
        run("failed"), attempts, incidents, decisions, [move(1.0, origin=None, target="queued")], now=NOW, costs=paid
    )


def test_a_run_that_ran_out_of_memory_and_was_brought_back() -> None:
    resumed = {"resumed_from": "/r/checkpoints/step_00000040.pt", "resumed_step": 40}
    attempts = [
        attempt(1, at=2.0, last=39, first_step=0),
        attempt(2, at=60.0, last=299, state="succeeded", first_step=41, ended_at=181.0, **resumed),
    ]
    summary = "rank 0 ran out of GPU memory (tried to allocate 2.00 GiB)"
    evidence = ("exit: torchrun ended with code 1", "torchrun: saw rank 0 fail first, with code 1")
    oom = incident(1, 1, "cuda_oom", summary=summary, evidence=evidence, witnesses=("exit", "launcher"))
    reason = "lowered batch_size 16 → 12, resuming from step_00000040.pt"
    retry = decision(1, 1, at=55.0, params={"batch_size": 12}, reason=reason)
    ended = run("succeeded", ended_at=181.0, attempt=2)
    sentences = story(ended, attempts, [oom], [retry], [move(1.0, origin=None, target="queued")], now=NOW)
    assert sentences == [
        "digits-1 was launched by ann from the profile digits-ddp.",
        "Attempt 1 ran on 2 CPU ranks for 49 s. It reported steps 0 to 39. "
        "Rank 0 ran out of GPU memory (tried to allocate 2.00 GiB), at step 40. Evidence: torchrun: saw rank 0 fail first, with code 1. gputui lowered batch_size 16 → 12, resuming "
        "from step_00000040.pt.",
        "Attempt 2 ran on 2 CPU ranks for 2 min, resumed from step_00000040.pt. It reported steps 41 to 299. It succeeded.",
        "The run succeeded with 2 attempts that took 2 min 49 s.",
    ]


def test_attempts_that_failed_in_the_same_way_are_told_together() -> None:
    sentences = alike_failures(5)
    assert len(sentences) == 4
    assert mentions(sentences[1], "step 60", "did 1", "10 steps", "20 s")
    assert mentions(
        sentences[2],
        "Attempts 2 to 5",
        "3 min 16 s",
        "batch_size 32 → 16 → 8 → 4",
        "nothing helps",
        "30 steps",
        "1 min",
    )
    assert len(alike_failures(2)) == 4
    assert alike_failures(2)[2].startswith("Attempt 2 ran on")


def test_failures_that_differ_or_that_a_person_parted_are_told_apart() -> None:
    attempts = [attempt(number, at=100.0 * number, last=60) for number in (1, 2, 3, 4, 5, 6)]
    incidents = [incident(n, n, "killed", step=60 if n < 4 else 70) for n in (1, 2, 3, 4, 5, 6)]
    moves = [move(1.0, origin=None, target="queued"), move(555.0, "failed", "queued", "ann", "restart")]
    sentences = story(run("failed"), attempts, incidents, [], moves, now=NOW)
    beginnings = [
        "Attempt 1 ran",
        "Attempts 2 and 3 failed",
        "Attempt 4 ran",
        "Attempt 5 ran",
        "ann asked for a restart",
    ]
    assert [text.startswith(beginning) for text, beginning in zip(sentences[1:-1], beginnings, strict=True)] == [
        True
    ] * 5


@table("values, sentence", [
    ({"state": "stopped", "stop_requested": "kill", "exit": {"forced": True}}, "A person had it killed at once."),
    ({"state": "succeeded", "exit": {"remarks": ["rank 0 printed a KeyError"]}}, "but rank 0 printed a KeyError."),
])  # fmt: skip
def test_the_end_of_an_attempt_without_an_incident(values: dict[str, Any], sentence: str) -> None:
    assert sentence in story(run("stopped"), [attempt(1, at=2.0, last=9, **values)], [], [], [], now=NOW)[1]


@table("went_on, expected", [
    ("beginning", "started from the beginning (step 1) although step_30.pt was given"),
    ("uncertain", "counts its steps from 1 again, and whether it loaded step_30.pt cannot be seen"),
    ("recounted", "resumed from step_30.pt, as its loss shows"),
])  # fmt: skip
def test_what_an_attempt_that_counts_from_the_first_step_did(went_on: Resumption, expected: str) -> None:
    paragraphs = story(
        run("succeeded"), [FIRST_ATTEMPT, second_attempt(first_step=1)], [], [], [], now=NOW, went_on={2: went_on}
    )
    assert expected in paragraphs[2]


def test_an_attempt_that_was_given_nothing_and_went_on_by_itself() -> None:
    again = attempt(2, at=60.0, last=99, first_step=61, state="succeeded", ended_at=181.0)
    sentences = story(run("succeeded"), [FIRST_ATTEMPT, again], [], [], [], now=NOW, went_on={2: "unaided"})
    assert mentions(sentences[2], "by itself (step 61)", "61 to 99")
    assert "beginning" not in sentences[2]


@table("started_at, placement, said", [
    (3.0, PLACED, "ran on 2 GPUs of lab (n1) for 1 min, after 2 min in the queue. It reported steps 1 to 9."),
    (3.0, replace(PLACED, gpus=0, queued_seconds=0.0), "ran on lab (n1) for 1 min."),
    (3.0, None, "ran on lab for"),
    (None, PLACED, "did not begin its command on lab within 50 s."),
    (3.0, replace(PLACED, restarts=3, limit_restarts=2), "requeued 2 times at its time limit and 1 time by the"),
])  # fmt: skip
def test_where_an_attempt_of_a_target_ran_and_how_long(
    started_at: float | None, placement: PlacementView | None, said: str
) -> None:
    placed = attempt(1, at=2.0, last=9, state="succeeded", started_at=started_at, ended_at=52.0, placement=placement)
    sentences = story(run("succeeded", target="lab"), [placed], [], [], [], now=NOW)
    assert said in sentences[1]
    assert "CPU" not in sentences[1]


def test_a_study_ends_its_trials_as_planned() -> None:
    moves = [move(18.0, "running", "stopping", "study s-1", "pruned at rung 3: 7th of 9")]
    killed = attempt(1, at=2.0, last=9, state="stopped", stop_requested="kill", exit={"forced": True}, ended_at=20.0)
    sentences = story(run("stopped", study_id="s-1"), [killed], [], [], moves, now=NOW)
    assert mentions(sentences[1], "as planned", "pruned at rung 3: 7th of 9")
    assert mentions(sentences[2], "stopped", "1 attempt")


def test_who_asked_for_a_restart_and_where_a_phase_ended() -> None:
    attempts = [attempt(1, at=2.0, last=9, state="stopped", stop_requested="phase", ended_at=20.0)]
    attempts += [attempt(2, at=31.0, last=9, state="stopped", stop_requested="restart", ended_at=50.0)]
    attempts += [attempt(3, at=61.0, last=9), attempt(4, at=91.0, last=9)]
    moves = [move(19.0, "running", "stopping", "agent", "phase 2 of 3 begins")]
    moves += [move(30.0, "stopped", "queued", "agent", "phase"), move(60.0, "stopped", "queued", "ann", "restart")]
    # A restart whose actor is the agent is told as that of a person without a name.
    moves += [move(90.0, "stopped", "queued", "agent", "restart")]
    sentences = story(run("stopped"), attempts, [], [], moves, now=NOW)
    assert mentions(sentences[1], "Attempt 1", "phase", "ended")
    assert mentions(sentences[2], "phase", "began", "Attempt 2")
    assert mentions(sentences[3], "ann ", "restart", "Attempt 3")
    assert mentions(sentences[4], "A person", "restart", "Attempt 4")


@table("state, values, sentence", [
    ("queued", {"waiting_for": "2 of 2 GPUs are in use"}, "It is waiting to start (2 of 2 GPUs are in use)."),
    ("queued", {}, "It is waiting to start."), ("recovering", {"not_before": 1020.0}, "It will start again in 20 s."),
    ("recovering", {"not_before": 990.0}, "It will start again now."),
    ("recovering", {"not_before": 990.0, "waiting_for": "waits for a disk"}, "It waits for a disk."),
    ("running", {"waiting_for": "has ended; its logs are being read"}, "It has ended; its logs are being read."),
    ("stopping", {}, "It is being stopped."), ("stopped", {"reason": "stopped"}, "The run stopped after 0 attempts."),
    ("starting", {}, "It is starting."),
])  # fmt: skip
def test_how_it_stands(state: str, values: dict[str, Any], sentence: str) -> None:
    assert story(run(state, **values), [], [], [], [], now=NOW)[-1] == sentence


def test_nothing_of_a_log_reaches_the_terminal_raw() -> None:
    sentences = story(
        run("failed", spec_json="not json"),
        [attempt(1, at=2.0)],
        [incident(1, 1, summary="rank 0 raised \x1b[2J\x1b]0;x\x07 an\nexception", evidence=(3, None))],
        [],
        [],
        now=NOW,
    )
    assert all(ord(char) >= 32 and not 0x7F <= ord(char) < 0xA0 for text in sentences for char in text)
    assert "on the CPU" in sentences[1]
