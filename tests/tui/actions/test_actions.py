"""The table of actions: every key leads somewhere, and what is not possible says why."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from gputui.charts.cells import cell_width
from gputui.store.runs import find_run
from gputui.tui.actions import ACTIONS, Context, Scope, actions_in, find, key_word, refused_here
from gputui.tui.actions.footer import footer_line, footer_parts, message_lines
from gputui.tui.actions.groups import HEADINGS
from gputui.tui.actions.help import help_lines
from gputui.tui.actions.reasons import NO_RUN
from gputui.tui.app import GputuiApp
from gputui.tui.commands import Commands
from gputui.tui.navigation import Navigation
from gputui.tui.pages.alerts.page import AlertsScreen
from gputui.tui.pages.compare.page import CompareCharts, CompareScreen
from gputui.tui.pages.gpu.page import GpuScreen
from gputui.tui.pages.launch.choose import ChooseProfileScreen
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.processes.page import ProcessesScreen
from gputui.tui.pages.run.chart_pane import RunCharts
from gputui.tui.pages.run.log_pane import RunLog
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.pages.study.choose import ChooseStudyScreen
from gputui.tui.pages.study.page import StudyScreen
from gputui.tui.time_travel import TimeTravel
from gputui.tui.widgets.page import ActionScreen
from tests.tui.filling import NOW, Filler

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
PARTS: dict[Scope, tuple[type, ...]] = {"run": (RunCharts, RunLog), "compare": (CompareCharts,)}
SCOPES: tuple[Scope, ...] = get_args(Scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_no_key_means_two_things(scope: Scope) -> None:
    keys = [key for action in actions_in(scope) for key in action.keys]
    assert len(keys) == len(set(keys))


def test_every_key_is_printed_as_what_is_on_the_keyboard() -> None:
    printed = {key: key_word(key) for action in ACTIONS for key in action.keys}
    assert [key for key, word in printed.items() if "_" in word] == []


@pytest.mark.parametrize("scope", SCOPES)
def test_names_are_unique_on_a_page(scope: Scope) -> None:
    names = [name for action in actions_in(scope) for name in {action.name, action.former or action.name}]
    assert len(names) == len(set(names))
    with pytest.raises(KeyError):
        find("no such thing", scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_action_can_be_carried_out(scope: Scope) -> None:
    for action in actions_in(scope):
        method = f"do_{action.name}"
        owners = (SCREENS[scope], *PARTS.get(scope, ()), GputuiApp, Navigation, Commands, TimeTravel)
        assert any(hasattr(owner, method) for owner in owners), action.name


@pytest.mark.parametrize("width", [40, 76, 116])
@pytest.mark.parametrize("scope", SCOPES)
def test_the_help_has_every_key_and_ends_with_those_that_do_nothing_now(scope: Scope, width: int) -> None:
    context = Context(scope)
    lines = ["".join(text for text, _ in line).rstrip() for line in help_lines(context, width)]
    assert max(map(cell_width, lines)) <= width
    refused = lines[-1] if lines[-1].startswith("Not now: ") else ""
    for action in actions_in(scope):
        if action.why_not(context) is None:
            key = context.key_word(action)
            assert any(key in line for line in lines), action.name
        else:
            assert refused, action.name


def test_the_help_has_two_columns_under_headings_with_navigation_last() -> None:
    lines = ["".join(text for text, _ in line) for line in help_lines(Context("overview"), 106)]
    whole = [line.split("   ")[0].strip() for line in lines if line[:1].isalpha()]
    assert whole[0] == "Runs"
    column = 106 // 2
    right = [line[column:].strip() for line in lines if not line.startswith("Not now")]
    headings = [text for text in right if text in HEADINGS]
    assert headings[-1] == "Move" and lines[0].startswith("Runs")
    assert len(lines) < len(actions_in("overview"))


def test_the_footer_uses_the_width_in_three_parts() -> None:
    wide = "".join(text for text, _ in footer_line(Context("overview"), 120)).rstrip()
    assert wide == (
        " ↵ open  n new  N like it  s stop │ p processes  i GPU  c compare  ! alerts  t past │ / filter  ^p find  "
        "? help  q quit"
    )
    narrow = "".join(text for text, _ in footer_line(Context("overview"), 80)).rstrip()
    assert narrow == " ↵ open  n new  N like it  s stop │ / filter  ^p find  ? help  q quit"


@pytest.mark.parametrize("scope", SCOPES)
def test_help_and_find_are_the_same_keys_everywhere(scope: Scope) -> None:
    assert "question_mark" in find("help", scope).keys and "ctrl+p" in find("palette", scope).keys


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_footer_fills_the_width_and_always_tells_how_to_leave(width: int) -> None:
    line = footer_line(Context("overview"), width)
    assert sum(cell_width(text) for text, _ in line) == width
    assert "q quit" in "".join(text for text, _ in line)


@pytest.mark.parametrize("scope", [scope for scope in SCOPES if scope not in ("profiles", "launch", "study_files")])
def test_looking_back_the_footer_tells_how_to_move_in_time_and_to_return(scope: Scope) -> None:
    live, past = (
        "".join(text for text, _ in footer_line(Context(scope, past_at=past_at), 80)) for past_at in (None, NOW)
    )
    assert "L live" not in live
    assert "< back 10 s  > on 10 s  L live" in past
    assert "n new" not in past and "s stop" not in past


def test_a_view_that_changes_nothing_gives_its_footer_to_what_can_be_done() -> None:
    footer = "".join(text for text, _ in footer_line(Context("overview", is_readonly=True), 80))
    assert "n new" not in footer and "s stop" not in footer
    assert "/ filter" in footer


def test_what_is_possible_depends_on_the_run(filler: Filler) -> None:
    filler.run("a-1", "running")
    filler.run("b-1", "failed", ended_ago=5.0)
    filler.run("c-1", "stopping")
    running, failed, stopping = (find_run(filler.connection, run_id) for run_id in ("a-1", "b-1", "c-1"))
    here = Context("overview")
    assert find("stop", "overview").why_not(here) == NO_RUN
    assert find("stop", "overview").why_not(replace(here, run=running)) is None
    assert find("stop", "overview").why_not(replace(here, run=failed)) == "b-1 is failed already."
    assert find("stop", "overview").why_not(replace(here, run=stopping)) == "c-1 is stopping already."
    assert find("resume", "overview").why_not(replace(here, run=failed)) is None
    assert "only an ended run" in str(find("resume", "overview").why_not(replace(here, run=running)))
    assert "stop it first" in str(find("remove", "overview").why_not(replace(here, run=running)))
    assert find("remove", "overview").why_not(replace(here, run=failed)) is None
    assert find("restart", "overview").why_not(replace(here, run=running)) is None
    assert "cannot begin again" in str(find("restart", "overview").why_not(replace(here, run=stopping)))
    for name in ("stop", "resume", "restart", "remove", "launch"):
        assert find(name, "overview").why_not(replace(here, run=failed, is_readonly=True)) == "This view is read only."


@pytest.mark.parametrize("scope", SCOPES)
def test_whatever_a_read_only_view_refuses_is_refused_while_looking_back(scope: Scope, filler: Filler) -> None:
    filler.run("a-1", "running")
    filler.run("b-1", "failed", ended_ago=5.0)
    filler.run("c-1", "queued")
    runs = [find_run(filler.connection, run_id) for run_id in ("a-1", "b-1", "c-1")]
    for action in actions_in(scope):
        for run in runs:
            refused = action.why_not(Context(scope, run, is_readonly=True))
            if refused is not None and refused == refused_here(Context(scope, run, is_readonly=True)):
                why_not = action.why_not(Context(scope, run, past_at=NOW))
                assert why_not is not None and "L returns to it" in why_not, action.name


def test_a_long_message_takes_three_lines_at_most() -> None:
    lines = message_lines("word " * 200, "error", 40)
    assert len(lines) == 3
    assert all(sum(cell_width(text) for text, _ in line) == 40 for line in lines)


def test_the_footer_of_a_runs_page_is_that_of_the_section_in_focus() -> None:
    def told(section: str, width: int) -> set[str]:
        return {part.action for part in footer_parts(Context("run", section=section), width)}

    assert {"cursor_right", "zoom_in", "smoothing_next"} <= told("charts", 200)
    assert {"log_next", "grave_only", "follow", "hit_next"} <= told("log", 200)
    assert not {"cursor_right", "zoom_in", "check"} & told("log", 200)
    assert "log_next" in told("log", 100) and "check" in told("params", 100) and "log_next" not in told("charts", 200)
    assert {"cursor_right", "zoom_in"} <= {part.action for part in footer_parts(Context("compare"), 200)}


@pytest.mark.parametrize(("key", "printed"), [("number_sign", "#"), ("shift+tab", "⇧tab"), ("ctrl+underscore", "^_")])
def test_a_key_is_printed_as_its_sign(key: str, printed: str) -> None:
    assert key_word(key) == printed
