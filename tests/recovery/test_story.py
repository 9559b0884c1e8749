"""The story of a run in plain sentences."""

# ruff: noqa: E501 - paragraphs are one line each

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from gputui.recovery.classify import Witness
from gputui.recovery.cost import Cost
from gputui.recovery.story import tell
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.recovery.test_history import attempt, decision, incident, move
from tests.texts import mentions

NOW = 1000.0


def run(state: str, **values: Any) -> Run:
    fields: dict[str, Any] = {
        "run_id": "digits-1",
        "sequence": 1,
        "name": "digits",
        "profile": "digits-ddp",
        "state": RunState(state),
        "attempt": 1,
        "params": {},
        "spec_json": json.dumps({"nproc": 2}),
        "created_at": 1.0,
        "queued_at": 1.0,
        "started_at": 2.0,
    }
    return Run(**fields | values)


@pytest.mark.parametrize("witness", get_args(Witness))
def test_what_kernel_and_launcher_saw_is_quoted(witness: str) -> None:
    told = tell(
        run("failed"), [attempt(1, at=2.0)], [incident(1, 1, "killed", evidence=("x",), witnesses=(witness,))], [], [], now=NOW
    )  # fmt: skip
    assert any("Evidence: x." in paragraph for paragraph in told) is (witness in ("kernel", "launcher"))


@pytest.mark.parametrize(("kind", "is_quoted"), [("cuda_oom", True), ("user_exception", False)])
def test_the_message_of_an_out_of_memory_is_quoted_and_what_the_summary_has_is_not(kind: str, is_quoted: bool) -> None:
    found = incident(
        1, 1, kind, summary="rank 1 ran out of GPU memory (train.py:88)", witnesses=("exit", "finding", "finding"),
        evidence=("exit: code 1", "rank 1: Tried to allocate 2 GiB, 1 GiB free", "rank 1: raised at train.py:88"),
    )  # fmt: skip
    told = " ".join(tell(run("failed"), [attempt(1, at=2.0)], [found], [], [], now=NOW))
    assert ("2 GiB, 1 GiB free" in told) is is_quoted
    assert "raised at" not in told and "code 1" not in told


def test_a_script_that_did_not_resume_is_not_said_to_have() -> None:
    told = tell(
        run("running", attempt=2),
        [
            attempt(1, at=2.0, last=1879, first_step=9),
            attempt(2, at=60.0, last=99, first_step=9, resumed_from="/r/epoch=17-step=1800.ckpt", resumed_step=1800),
        ],
        [],
        [],
        [move(1.0, None, "queued")],
        now=NOW,
    )
    assert mentions(told[2], "beginning (step 9)", "epoch=17-step=1800.ckpt")
    assert "resumed from" not in told[2]


def test_a_run_that_ran_out_of_memory_and_was_brought_back() -> None:
    told = tell(
        run("succeeded", ended_at=181.0, attempt=2),
        [
            attempt(1, at=2.0, last=39, first_step=0),
            attempt(
                2,
                at=60.0,
                last=299,
                state="succeeded",
                first_step=41,
                ended_at=181.0,
                resumed_from="/r/checkpoints/step_00000040.pt",
                resumed_step=40,
            ),
        ],
        [
            incident(
                1,
                1,
                "cuda_oom",
                rank=0,
                step=40,
                summary="rank 0 ran out of GPU memory (tried to allocate 2.00 GiB)",
                evidence=("exit: torchrun ended with code 1", "torchrun: saw rank 0 fail first, with code 1"),
                witnesses=("exit", "launcher"),
            )
        ],
        [
            decision(
                1,
                1,
                at=55.0,
                params={"batch_size": 12, "grad_accum": 4},
                reason="lowered batch_size 16 → 12 and raised grad_accum 3 → 4, so that the effective batch stays 48 per "
                "rank, resuming from step_00000040.pt",
            )
        ],
        [move(1.0, None, "queued")],
        now=NOW,
    )
    assert told == [
        "digits-1 was launched by ann from the profile digits-ddp.",
        "Attempt 1 ran on 2 CPU ranks from step 0 to 39 for 49 s. Rank 0 ran out of GPU memory (tried to allocate 2.00 GiB), "
        "at step 40. Evidence: torchrun: saw rank 0 fail first, with code 1. gputui lowered batch_size 16 → 12 and raised "
        "grad_accum 3 → 4, so that the effective batch stays 48 per rank, resuming from step_00000040.pt.",
        "Attempt 2 ran on 2 CPU ranks from step 41 to 299 for 2 min, resumed from step_00000040.pt. It succeeded.",
        "The run succeeded with 2 attempts that took 2 min 49 s.",
    ]


def test_a_run_that_was_given_up() -> None:
    told = tell(
        run("failed", reason="import failed: another attempt would end in the same way"),
        [attempt(1, at=2.0, gpus=("GPU-a", "GPU-b"))],
        [incident(1, 1, "import_error", step=None, summary="rank 0 could not import a module (No module named 'x')")],
        [decision(1, 1, at=55.0, verdict="stop", reason="import failed: another attempt would end in the same way")],
        [move(1.0, None, "queued")],
        now=NOW,
    )
    assert told[1] == (
        "Attempt 1 ran on 2 GPUs without a step in its metrics for 49 s. Rank 0 could not import a module (No module named "
        "'x'). gputui stopped here: import failed: another attempt would end in the same way."
    )
    # The cause stands once.
    assert mentions(told[2], "failed", "1 attempt")


def test_a_stop_by_a_person_and_a_resume() -> None:
    moves = [
        move(1.0, None, "queued"),
        move(2.0, "queued", "starting", "agent"),
        move(40.0, "running", "stopping", "bob", "stop"),
        move(52.0, "stopping", "stopped", "agent"),
        move(900.0, "stopped", "queued", "eve", "resume"),
        move(901.0, "queued", "starting", "agent"),
    ]
    told = tell(
        run("running", attempt=2),
        [
            attempt(1, at=2.0, last=20, state="stopped", stop_requested="stop", exit={"forced": True}),
            attempt(2, at=901.0, last=25, state="running", ended_at=None, resumed_from="/r/step_20.pt", first_step=21),
        ],
        [],
        [],
        moves,
        now=NOW,
    )
    assert mentions(told[1], "bob", "stop", "killed")
    assert told[2] == (
        "eve asked for a resume. Attempt 2 has been running on 2 CPU ranks from step 21 to 25 for 1 min 38 s so far, "
        "resumed from step_20.pt."
    )
    assert told[3] == "It is running."


def test_a_restart_by_recovery_is_not_called_a_persons() -> None:
    moves = [
        move(1.0, None, "queued"),
        move(900.0, "stopped", "queued", "eve", "resume"),
        move(901.0, "queued", "starting", "agent"),
        move(950.0, "running", "recovering", "agent"),
        move(951.0, "recovering", "queued", "agent"),
        move(952.0, "queued", "starting", "agent"),
    ]
    told = tell(
        run("running", attempt=2), [attempt(1, at=901.5), attempt(2, at=952.5, ended_at=None)], [], [], moves, now=NOW
    )
    assert told[1].startswith("eve asked for a resume. Attempt 1 ")
    assert told[2].startswith("Attempt 2 ")


@pytest.mark.parametrize(
    ("state", "values", "sentence"),
    [
        ("queued", {"waiting_for": "2 of 2 GPUs are in use"}, "It is waiting to start (2 of 2 GPUs are in use)."),
        ("queued", {}, "It is waiting to start."),
        ("recovering", {"not_before": 1020.0}, "It will start again in 20 s."),
        ("recovering", {"not_before": 990.0}, "It will start again now."),
        ("recovering", {"not_before": 990.0, "waiting_for": "waits for a disk"}, "It waits for a disk."),
        ("running", {"waiting_for": "has ended; its logs are being read"}, "It has ended; its logs are being read."),
        ("stopping", {}, "It is being stopped."),
        ("stopped", {"reason": "stopped"}, "The run stopped after 0 attempts."),
        ("starting", {}, "It is starting."),
    ],
)
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


def test_what_failures_cost_is_told_with_each_and_together() -> None:
    attempts = [attempt(1, at=2.0, last=39), attempt(2, at=60.0, last=45), attempt(3, at=90.0, state="running")]
    incidents = [incident(1, 1, "killed"), incident(2, 2, "killed")]
    costs = {1: Cost(9, 30.0, 0.5), 2: Cost(None, None, None)}
    told = tell(run("running", attempt=3), attempts, incidents, [], [], now=NOW, costs=costs)
    assert mentions(told[1], "9 steps", "30 s", "0.5 GPU-hours")
    assert "cost" not in told[2]
    assert mentions(told[-1], "2 incidents", "at least 9 steps", "30 s", "0.5 GPU-hours")
    assert "cost" not in " ".join(tell(run("running"), attempts, incidents, [], [], now=NOW))
