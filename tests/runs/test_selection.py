"""Which runs a filter chooses, and which of them a command acts on."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.runs.selection import ACTS_ON, RunFilter, age_seconds
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
    assert not RunFilter() and RunFilter(older_seconds=0.0) and RunFilter(tags=("a",))


def test_a_clock_that_was_set_back_makes_no_negative_age() -> None:
    assert age_seconds(RUN, 0.0) == 0.0


def test_what_each_command_acts_on() -> None:
    runs = {state: replace(RUN, state=state) for state in RunState} | {"trial": TRIAL}
    acts_on = {verb: {str(name) for name, run in runs.items() if test(run)} for verb, test in ACTS_ON.items()}
    over = {"succeeded", "failed", "stopped", "trial"}
    everything = {str(name) for name in runs}
    assert acts_on == {
        "stop": everything - over, "rm": over, "restart": over, "resume": {"failed", "stopped"},
        "resume --force": over, "label": everything,
    }  # fmt: skip
