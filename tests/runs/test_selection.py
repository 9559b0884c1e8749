"""Which runs a filter chooses, and which of them a command acts on."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from gputui.runs.selection import REFUSALS, RunFilter, age_seconds
from gputui.runs.spec import CheckpointSpec, RunSpec
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.tables import table

NOW = 1_000_000.0
DAY = 86_400.0
RUN = Run(
    run_id="vit-1", sequence=1, name="vit", profile="vit", state=RunState.FAILED, attempt=1, params={}, spec_json="{}",
    created_at=NOW - 9 * DAY, started_at=NOW - 8 * DAY, ended_at=NOW - 7 * DAY, tags=("base", "old"),
)  # fmt: skip
LIVE = replace(RUN, state=RunState.RUNNING, ended_at=None)
QUEUED = replace(LIVE, state=RunState.QUEUED, started_at=None)
TRIAL = replace(RUN, study_id="lr", profile="sweep")

BEGUN_AGAIN = {"rm", "restart", "restart by name", "label"}


def spec_text(**fields: Any) -> str:
    checkpoints = CheckpointSpec("{run_dir}/checkpoints", "*.pt", ("--resume", "{checkpoint}"))
    spec = RunSpec(
        name="vit", launcher="torchrun", program=("train.py",), workdir="/w", python="python", checkpoints=checkpoints
    )
    return json.dumps(replace(spec, **fields).to_json())


ENDED = replace(RUN, spec_json=spec_text(), has_checkpoint=True)
FAR = spec_text(target={"name": "hub", "kind": "ssh", "host": "hub"})


@table(
    ("only", "run", "is_chosen"),
    [
        (RunFilter(), RUN, True),
        (RunFilter(states=("failed", "stopped")), RUN, True),
        (RunFilter(states=("failed",)), LIVE, False),
        (RunFilter(profiles=("cnn", "vit")), RUN, True),
        (RunFilter(profiles=("vit",)), TRIAL, False),
        (RunFilter(studies=("lr",)), TRIAL, True),
        (RunFilter(studies=("lr",)), RUN, False),
        (RunFilter(tags=("base", "#old")), RUN, True),
        (RunFilter(tags=("base", "new")), RUN, False),
        (RunFilter(older_seconds=6 * DAY), RUN, True),
        (RunFilter(older_seconds=7 * DAY), RUN, False),
        (RunFilter(older_seconds=7 * DAY), LIVE, True),
        (RunFilter(older_seconds=8 * DAY), QUEUED, True),
        (RunFilter(states=("failed",), tags=("none",)), RUN, False),
    ],
)
def test_a_filter_chooses_what_has_all_of_it(only: RunFilter, run: Run, is_chosen: bool) -> None:
    assert only.matches(run, NOW) is is_chosen


def test_only_a_filter_that_says_something_is_one() -> None:
    assert not RunFilter()
    assert RunFilter(older_seconds=0.0)
    assert RunFilter(tags=("a",))


def test_a_clock_that_was_set_back_makes_no_negative_age() -> None:
    assert age_seconds(RUN, 0.0) == 0.0


@table(
    ("run", "verbs"),
    [
        (replace(LIVE, spec_json=spec_text()), {"stop", "restart by name", "label"}),
        (QUEUED, {"stop", "label"}),
        (ENDED, {"rm", "restart", "restart by name", "resume", "resume --force", "resume --from", "label"}),
        (replace(ENDED, state=RunState.SUCCEEDED), {*BEGUN_AGAIN, "resume --force", "resume --from"}),
        (replace(ENDED, study_id="lr"), {*BEGUN_AGAIN, "resume --force", "resume --from"}),
        (replace(ENDED, has_checkpoint=None), {*BEGUN_AGAIN, "resume", "resume --force", "resume --from"}),
        (replace(ENDED, has_checkpoint=False), {*BEGUN_AGAIN, "resume --from"}),
        (replace(ENDED, attempt=0), {*BEGUN_AGAIN, "resume --from"}),
        (replace(ENDED, spec_json=spec_text(checkpoints=None)), BEGUN_AGAIN),
        (replace(ENDED, spec_json="{"), {"rm", "label"}),
        (
            replace(ENDED, spec_json=FAR, has_checkpoint=False),
            {*BEGUN_AGAIN, "resume", "resume --force", "resume --from"},
        ),
        (replace(ENDED, spec_json=FAR, attempt=0), {*BEGUN_AGAIN, "resume --from"}),
    ],
)
def test_what_acts_on_a_run(run: Run, verbs: set[str]) -> None:
    assert {verb for verb, refusal in REFUSALS.items() if refusal(run) is None} == verbs


def test_one_that_waits_cannot_be_begun_again_for_what_it_waits_for() -> None:
    assert REFUSALS["restart by name"](replace(QUEUED, waiting_for="waits for a-1")) == "waits for a-1"


def test_each_run_that_a_resume_leaves_out_has_a_reason_of_its_own() -> None:
    runs = [
        LIVE, replace(ENDED, state=RunState.SUCCEEDED), replace(ENDED, study_id="lr"),
        replace(ENDED, has_checkpoint=False), replace(ENDED, spec_json=spec_text(checkpoints=None)),
        replace(ENDED, spec_json="{"),
    ]  # fmt: skip
    reasons = {REFUSALS["resume"](run) for run in runs}
    assert len(reasons) == len(runs)
    assert None not in reasons
