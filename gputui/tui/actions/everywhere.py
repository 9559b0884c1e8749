"""Looking back, launching, and what every page has."""

from __future__ import annotations

from gputui.tui.actions.model import Action, act
from gputui.tui.actions.reasons import can_launch, looks_back
from gputui.tui.actions.scopes import ALL, FORM, OVERVIEW, PAGES

EVERYWHERE: tuple[Action, ...] = (
    # looking back
    act("time_back", "less_than_sign", "back in time", "Look at ten seconds before", ALL, shown=False),
    act("time_forth", "greater_than_sign", "on", "Look at ten seconds later", ALL, looks_back, shown=False),
    act("time_back_far", "left_curly_bracket", "far back", "Look at a hundred seconds before", ALL, shown=False),
    act(
        "time_forth_far",
        "right_curly_bracket",
        "far on",
        "Look at a hundred seconds later",
        ALL,
        looks_back,
        shown=False,
    ),
    act(
        "time_type",
        "t",
        "time",
        "Look at a moment: 03:12, -20m, yesterday 3:12; the crosshair's",
        ("overview", "compare", *PAGES),
        shown=False,
    ),
    act(
        "tick_previous",
        "left_square_bracket",
        "event before",
        "Look at the event, incident or alert before",
        ALL,
        shown=False,
    ),
    act(
        "tick_next",
        "right_square_bracket",
        "next event",
        "Look at the next event, incident or alert",
        ALL,
        looks_back,
        shown=False,
    ),
    act("live", "L", "live", "Return to the present", ALL, looks_back, shown=False),
    # the launch form
    act("start", "enter", "launch", "Launch the run with these values", FORM, can_launch),
    act("field_next", "down tab", "next", "The next field", FORM, shown=False, in_palette=False),
    act("field_previous", "up shift+tab", "before", "The field before", FORM, shown=False, in_palette=False),
    act("profile_next", "ctrl+n pagedown", "next profile", "Choose the next profile", FORM),
    act("profile_previous", "ctrl+p pageup", "profile before", "Choose the profile before", FORM, shown=False),
    act("preview", "ctrl+d", "dry run", "Show the whole command, environment and checks without starting", FORM),
    act("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", FORM),
    act("last_values", "ctrl+r", "as last", "The values of the newest run of this profile", FORM, shown=False),
    act("cancel", "escape ctrl+c", "back", "Back without launching", FORM),
    # everywhere
    act("palette", "ctrl+p colon", "palette", "Find anything by a part of its name", ALL, in_palette=False),
    act("copy", "ctrl+y Y", "copy", "Copy what is in focus to the clipboard of your own machine", ALL, shown=False),
    act("theme", "T", "theme", "The next theme", ALL, shown=False),
    act(
        "settings",
        "comma f2",
        "settings",
        "Theme, characters, mouse, bell, title, pace: kept for the next start",
        (*ALL, *FORM),
        shown=False,
    ),
    act("mouse", "m", "mouse", "The mouse on or off", OVERVIEW, shown=False),
    act(
        "suspend",
        "ctrl+z",
        "suspend",
        "Leave the terminal to the shell; fg comes back",
        (*ALL, *FORM),
        shown=False,
    ),
    act("leave", "q ctrl+c", "leave", "Leave the screen; runs go on", ALL),
)
