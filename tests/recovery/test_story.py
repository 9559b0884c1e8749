"""The story of a run in plain sentences."""

# ruff: noqa: E501 - paragraphs are one line each

from __future__ import annotations

import json
from typing import Any

from gputui.recovery.story import tell
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.recovery.test_history import attempt, decision, incident, move
from tests.tables import table

NOW = 1000.0


def run(state: str, **values: Any) -> Run:
    fields: dict[str, Any] = {
        "run_id": "digits-1", "sequence": 1, "name": "digits", "profile": "digits-ddp",
        "state": RunState(state), "attempt": 1, "params": {}, "spec_json": json.dumps({"nproc": 2}),
        "created_at": 1.0, "queued_at": 1.0, "started_at": 2.0,
    }  # fmt: skip
    return Run(**fields | values)


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
    told = tell(ended, attempts, [oom], [retry], [move(1.0, None, "queued")], now=NOW)
    assert told == [
        "digits-1 was launched by ann from the profile digits-ddp.",
        "Attempt 1 ran on 2 CPU ranks from step 0 to 39 for 49 s. Rank 0 ran out of GPU memory (tried to allocate 2.00 GiB), "
        "at step 40. Evidence: torchrun: saw rank 0 fail first, with code 1. gputui lowered batch_size 16 → 12, resuming "
        "from step_00000040.pt.",
        "Attempt 2 ran on 2 CPU ranks from step 41 to 299 for 2 min, resumed from step_00000040.pt. It succeeded.",
        "The run succeeded with 2 attempts that took 2 min 49 s.",
    ]


@table("values, sentence", [
    ({"state": "stopped", "stop_requested": "kill", "exit": {"forced": True}}, "A person had it killed at once."),
    ({"state": "succeeded", "exit": {"remarks": ["rank 0 printed a KeyError"]}}, "but rank 0 printed a KeyError."),
])  # fmt: skip
def test_the_end_of_an_attempt_without_an_incident(values: dict[str, Any], sentence: str) -> None:
    assert sentence in tell(run("stopped"), [attempt(1, at=2.0, last=9, **values)], [], [], [], now=NOW)[1]


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
    assert tell(run(state, **values), [], [], [], [], now=NOW)[-1] == sentence


def test_nothing_of_a_log_reaches_the_terminal_raw() -> None:
    told = tell(
        run("failed", spec_json="not json"),
        [attempt(1, at=2.0)],
        [incident(1, 1, summary="rank 0 raised \x1b[2J\x1b]0;x\x07 an\nexception", evidence=(3, None))],
        [],
        [],
        now=NOW,
    )
    assert all(ord(char) >= 32 and not 0x7F <= ord(char) < 0xA0 for text in told for char in text)
    assert "on the CPU" in told[1]
