"""The table of actions: every key leads somewhere, and what is not possible says why."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import get_args

import pytest
from msgspec.structs import replace

from gputui.core.text import cell_width
from gputui.store.hardware import read_gpus
from gputui.store.run_states import RunState
from gputui.store.runs import Run, find_run
from gputui.ui.tui.actions import ACTIONS, Context, Scope, actions_in, find
from gputui.ui.tui.actions.checks import NO_RUN, needs_write
from gputui.ui.tui.actions.key_lines import footer_line, help_lines, with_keys
from gputui.ui.tui.actions.keys import key_word
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.alerts.page import AlertsScreen
from gputui.ui.tui.pages.compare.page import CompareScreen
from gputui.ui.tui.pages.gpu.page import GpuScreen
from gputui.ui.tui.pages.launch.page import ChooseProfileScreen, LaunchScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.pages.processes.page import ProcessesScreen
from gputui.ui.tui.pages.run.log import RunLog
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.pages.signs import PAGE_SIGNS
from gputui.ui.tui.pages.study.choose import ChooseStudyScreen
from gputui.ui.tui.pages.study.page import StudyScreen
from gputui.ui.tui.widgets.chart_pane import Charts
from gputui.ui.tui.widgets.page import ActionScreen
from tests.homes import NOW, Home
from tests.tables import table
from tests.texts import mentions

SCREENS: dict[Scope, type[ActionScreen]] = {
    "overview": OverviewScreen,
    "run": RunScreen,
    "profiles": ChooseProfileScreen,
    "launch": LaunchScreen,
    "alerts": AlertsScreen,
    "gpu": GpuScreen,
    "compare": CompareScreen,
    "processes": ProcessesScreen,
    "studies": StudyScreen,
    "study_files": ChooseStudyScreen,
}
PARTS: dict[Scope, tuple[type, ...]] = {"run": (Charts, RunLog), "compare": (Charts,)}
SCOPES: tuple[Scope, ...] = get_args(Scope)


def twice(texts: Iterable[str]) -> list[str]:
    return [word for word, count in Counter(texts).items() if count > 1]


def footer(context: Context, width: int) -> str:
    return "".join(text for text, _ in footer_line(context, width)).rstrip()


def test_no_key_means_two_things_and_names_are_unique_on_a_page() -> None:
    assert {scope: twice(key for action in actions_in(scope) for key in action.keys) for scope in SCOPES} == {
        scope: [] for scope in SCOPES
    }
    for scope in SCOPES:
        assert twice(action.name for action in actions_in(scope)) == [], scope
    with pytest.raises(KeyError):
        find("no such thing", "overview")


def test_every_key_is_printed_as_what_is_on_the_keyboard() -> None:
    assert {key for action in ACTIONS for key in action.keys if "_" in key_word(key)} == set()
    printed = {"number_sign": "#", "shift+tab": "⇧tab", "ctrl+underscore": "^_"}
    assert {key: key_word(key) for key in printed} == printed


def test_every_action_can_be_carried_out() -> None:
    missing = [
        (scope, action.name)
        for scope in SCOPES
        for action in actions_in(scope)
        if not any(hasattr(owner, f"do_{action.name}") for owner in (SCREENS[scope], *PARTS.get(scope, ()), GputuiApp))
    ]
    assert missing == []


def test_the_help_has_every_key_and_fits_36_rows() -> None:
    for scope, width in itertools.product(SCOPES, (40, 76, 116)):
        context = Context(scope, has_studies=True)
        lines = ["".join(text for text, _ in line).rstrip() for line in help_lines(context, width)]
        assert max(map(cell_width, lines)) <= width, (scope, width)
        for action in actions_in(scope):
            assert any(action.key_word(context) in line for line in lines), (scope, width, action.name)
        # Below them are two lines of the frame.
        assert width < 116 or len(lines) <= 34, scope


def test_the_help_has_every_sign_of_its_page_in_its_colour() -> None:
    for scope, width in itertools.product(PAGE_SIGNS, (40, 76, 116)):
        lines = help_lines(Context(scope), width, PAGE_SIGNS[scope])
        assert max(cell_width("".join(text for text, _ in line)) for line in lines) <= width, (scope, width)
        spans = {(text.strip(), style) for line in lines for text, style in line}
        assert {(sign.glyph, sign.style) for sign in PAGE_SIGNS[scope]} <= spans, (scope, width)
    overview = {sign.glyph: sign.word for sign in PAGE_SIGNS["overview"]}
    assert overview["◔"] == "starting"
    assert mentions(overview["⊘"], "quarantine")
    loads = {sign.style: sign.word for sign in PAGE_SIGNS["overview"] if sign.style.startswith("load")}
    assert mentions(loads["load.2"], "75 %", "80 %")


def test_the_footer_uses_the_width_in_three_parts() -> None:
    wide = (
        " ↵ open  n new  r rerun  s stop │ p proc  i GPU  c compare  ! alerts  t time │ "
        "/ filter  ^p find  ? help  q quit"
    )
    with_run = Context("overview", section="gpus")
    assert footer(with_run, 120) == wide
    assert footer(with_run, 80) == re.sub(" (filter|find|help|quit)", "", wide).replace("  ", " ")
    assert footer(with_run, 100).endswith("│ /  ^p  ? help  q quit"), "as many words as fit"
    assert footer(with_run, 110).endswith("│ /  ^p find  ? help  q quit")
    assert mentions(footer(with_run, 60), "↵ open", "s stop", "^p ? q")
    assert footer(Context("overview"), 120) == wide.replace("  r rerun  s stop", ""), "there is no run"
    assert mentions(footer(Context("run", section="charts", has_studies=True), 80), "s stop", "→ crosshair", "^p ? q")
    for scope in ("overview", "run", "gpu", "processes", "alerts", "compare"):
        assert "S studies" in footer(Context(scope, has_studies=True), 200), scope
        assert "S studies" not in footer(Context(scope), 200), scope


def test_short_words_of_the_footer_say_what_they_do() -> None:
    studies = footer(Context("studies", study="running"), 240)
    assert mentions(studies, "^n study", "x prune  e protect", "N trial", "n new run")
    assert "w shortest" in footer(Context("compare"), 200)
    assert mentions(footer(Context("run", section="log"), 200), "o log", ". match")
    launching = {action.keys for action in ACTIONS if action.name == "launch"}
    assert launching == {("n",)}, "one key on every page"


def test_the_footer_has_what_is_of_use_only_here(home: Home) -> None:
    home.run("a-1", "running")
    home.gpus(8)
    run = find_run(home.connection, "a-1")
    gpu = read_gpus(home.connection, NOW)[7]
    here = Context("overview", run, gpu=gpu)
    assert "C clear" not in footer(here, 120)
    assert "esc unmark" not in footer(here, 120)
    assert "C clear" in footer(replace(here, quarantined=frozenset({gpu.uuid})), 80)
    assert "esc unmark" in footer(replace(here, marked=(run,)), 80)


@pytest.mark.parametrize("width", range(40, 201, 7))
@pytest.mark.parametrize("scope", SCOPES)
def test_the_footer_never_leaves_out_the_ways_out(scope: Scope, width: int) -> None:
    line = footer(Context(scope, has_studies=True, past_at=None), width)
    ends = ("esc",) if scope in ("profiles", "study_files", "launch") else ("^p", "?", "q")
    assert cell_width(line) <= width
    assert mentions(line, *ends)


def test_what_is_possible_depends_on_the_run(home: Home) -> None:
    for run_id, state in (("a-1", "running"), ("b-1", "failed"), ("c-1", "stopping")):
        ended_ago = 5.0 if state == "failed" else None
        home.run(run_id, state, ended_ago=ended_ago)
    running, failed, stopping = (find_run(home.connection, run_id) for run_id in ("a-1", "b-1", "c-1"))
    here = Context("overview")
    for name, run, reason in (
        ("stop", None, NO_RUN), ("stop", running, None), ("stop", failed, "b-1 has failed already."),
        ("stop", stopping, "c-1 is stopping already."), ("resume", failed, None),
        ("resume", running, "a-1 is running; only an ended run can be resumed."),
        ("remove", running, "a-1 is running; stop it first."), ("remove", failed, None), ("restart", running, None),
        ("restart", stopping, "c-1 is stopping: wait for its end."), ("rerun", None, NO_RUN),
        ("remove", stopping, "c-1 is stopping: wait for its end."), ("rerun", running, None),
    ):  # fmt: skip
        assert find(name, "overview").why_not(replace(here, run=run)) == reason, (name, reason)
    readonly = replace(here, run=failed, is_readonly=True)
    for name in ("stop", "resume", "restart", "rerun", "remove", "launch", "clone"):
        assert find(name, "overview").why_not(readonly) == needs_write(readonly)


@table("state, phrase", [
    (RunState.QUEUED, None), (RunState.RUNNING, None), (RunState.STOPPING, "is stopping"),
    (RunState.SUCCEEDED, "has succeeded"), (RunState.FAILED, "has failed"), (RunState.STOPPED, "is stopped"),
])  # fmt: skip
def test_a_refused_stop_names_the_state_in_good_english(state: RunState, phrase: str | None) -> None:
    run = Run("a-1", 1, "a", profile="a", state=state, attempt=1, params={}, spec_json="{}", created_at=0.0)
    refused = find("stop", "run").why_not(Context("run", run))
    expected = None if phrase is None else f"a-1 {phrase} already."
    assert refused == expected


@table("text, scope, phrase", [
    ("none; gputui resume a-1 --from PATH takes one, gputui restart a-1 begins it again", "run",
     "none; gputui resume a-1 --from PATH takes one, r (restart) begins it again"),
    ("ends the wait: gputui stop b-1", "overview", "ends the wait: gputui stop b-1"),
    ("lr-1 is finished; gputui study extend gives it more", "studies", "lr-1 is finished; r (extend) gives it more"),
    ("broken; gputui gpus --clear 7 ends it", "overview", "broken; C ends it"),
    ("gputui gpus --clear GPU-0f-1 ends it", "gpu", "C ends it"), ("gputui stop a-1", "alerts", "gputui stop a-1"),
    ("gputui stop --now gives lab up", "run", "gputui stop --now gives lab up"),
    ("paused; gputui queue resume opens it", "overview", "paused; P opens it"),
])  # fmt: skip
def test_a_refusal_names_the_key_where_there_is_one(text: str, scope: Scope, phrase: str) -> None:
    run = Run("a-1", 1, "a", profile="a", state=RunState.FAILED, attempt=1, params={}, spec_json="{}", created_at=0.0)
    assert with_keys(text, Context(scope, run)) == phrase
    rebound = Context(scope, run, keys={"rerun": ("R",), "clear_gpu": ("C",), "queue_toggle": ("P",)})
    assert with_keys(text, rebound) == phrase.replace("r (", "R (")


def test_with_marked_runs_one_that_it_can_be_done_with_is_enough(home: Home) -> None:
    for run_id, state in (("a-1", "running"), ("b-1", "failed"), ("c-1", "succeeded")):
        ended_ago = None if state == "running" else 5.0
        home.run(run_id, state, ended_ago=ended_ago)
    running, failed, complete = (find_run(home.connection, run_id) for run_id in ("a-1", "b-1", "c-1"))

    def possible(*marked: Run) -> set[str]:
        here = Context("overview", run=running, marked=marked)
        names = ("stop", "resume", "restart", "remove", "label", "rerun")
        return {name for name in names if find(name, "overview").why_not(here) is None}

    assert possible(running) == {"stop", "label"}
    assert possible(complete) == {"restart", "remove", "label", "rerun"}
    assert possible(failed, running) == {"stop", "resume", "restart", "remove", "label", "rerun"}
    here = Context("overview", marked=(failed,), is_readonly=True)
    assert find("remove", "overview").why_not(here) == needs_write(here)
    assert find("open", "overview").why_not(replace(here, run=running)) is None
    line = footer(Context("overview", run=running, marked=(failed, complete, running)), 80)
    assert "rerun 2" in line
    assert "stop 1" in line
    assert "stop" not in footer(Context("overview", run=running, marked=(failed, complete)), 80)


def test_whatever_a_read_only_view_refuses_is_refused_while_looking_back(home: Home) -> None:
    home.run("a-1", "running")
    home.run("b-1", "failed", ended_ago=5.0)
    home.run("c-1", "queued")
    allowed = []
    for scope, run_id in itertools.product(SCOPES, ("a-1", "b-1", "c-1")):
        readonly = Context(scope, find_run(home.connection, run_id), is_readonly=True)
        for action in actions_in(scope):
            refused = action.why_not(readonly)
            if refused is not None and refused == needs_write(readonly):
                why_not = action.why_not(replace(readonly, is_readonly=False, past_at="03:12:44"))
                if why_not is None or "L returns to it" not in why_not:
                    allowed.append((scope, run_id, action.name))
    assert allowed == []
