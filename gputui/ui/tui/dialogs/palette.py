"""The palette: finds studies, runs, profiles, GPUs, pages, actions, settings by a part of the name.

Textual's own palette writes 60 kB when it opens at 120×36, this one 3 kB: that is felt over SSH.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from gputui.core.config import shipped_profiles
from gputui.core.text import cell_width, clean, clip
from gputui.core.units import count_of
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.actions import actions_in, find
from gputui.ui.tui.dialogs.settings import ITEMS
from gputui.ui.tui.layout.columns import justify
from gputui.ui.tui.layout.gpu_words import gpu_row, user_spans
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen, Choice
from gputui.ui.views.words import run_state_text

Target = TypeVar("Target")

KINDS = ("study", "run", "profile", "GPU", "page", "action", "other")
"""Of choices that match equally well, the earlier kind comes first."""

# Most characters of a name and of the text beside it.
TITLE_WIDTH = 40
HINT_WIDTH = 30

# Distances of a typed word from a title that does not begin with it.
_WORD = 1
_INSIDE = 2
_BESIDE = 3
_LETTERS = 4

SYNONYMS: Mapping[str, str] = {
    "alerts": "warnings problems",
    "clone": "duplicate again",
    "compare": "diff versus",
    "environment": "env variables",
    "export": "save write png svg csv",
    "find": "search grep",
    "help": "keys",
    "label": "rename tag note comment",
    "launch": "start run train",
    "leave": "exit",
    "open": "logs charts metrics export save traceback",
    "processes": "top ps",
    "remove": "delete rm",
    "rerun": "retry again",
    "section_log": "logs output stdout stderr",
    "signal": "kill terminate",
    "silence": "mute snooze",
    "stop": "kill cancel abort end terminate",
    "studies": "sweep search trials",
    "time_type": "history past yesterday",
}
"""Other words for actions."""


class PaletteScreen(Dialog):
    """A line of text and the choices that match; Enter carries out the one under the cursor."""

    WIDTH = 76
    PANE_ID = "palette"
    MOST_ROWS: ClassVar = 12
    LISTED = 100
    keys = (("enter", "go"), ("escape", "back"))

    def __init__(self, page: ActionScreen) -> None:
        super().__init__()
        self.edits = [LineEdit()]
        self._choices = palette_choices(page)
        self.matches: list[Choice] = []
        self.edited()

    def edited(self) -> None:
        """Find the choices that match; trials follow once the name of their study is typed."""
        typed = self.edits[0].text
        self.cursor = 0
        offered = [choice for choice in self._choices if choice.after.lower() in typed.lower()]
        self.matches = best_matches(offered, typed, search_texts)

    def choose(self) -> None:
        self.dismiss(None)
        if self.matches:
            self.matches[self.cursor].do()

    def press(self, key: str) -> bool:
        by = {"ctrl+n": 1, "ctrl+p": -1}.get(key, 0)
        self.move(by)
        return by != 0

    def content(self, width: int) -> Content:
        rows: list[Line] = []
        for choice in self.matches[: self.LISTED]:
            style = "text"
            beside = clip(choice.hint, width)
            if choice.why_not:
                # Of an action that is not possible now, the reason gives way to the title.
                most = max(width - cell_width(choice.title) - 4, width // 3)
                style = "dim"
                beside = clip(choice.why_not, most)
            rows.append(justify([(choice.title, style)], [(f" {beside}", "dim")], width - 2))
        lines: list[Line] = [[("› ", "cursor"), *self.edits[0].spans(width - 2)]]
        if not rows:
            lines.append([("  No matches.", "dim")])
        blanks = min(self.MOST_ROWS, self.app.size.height - 5) - len(rows) - len(lines) + 1
        title = "Find · type a part of a name"
        if self.edits[0].text:
            title = f"Find · {len(self.matches)} found"
        return Content(title, lines, rows, [[]] * blanks)


def search_texts(choice: Choice) -> tuple[str, str, tuple[int, ...]]:
    """The title that typed words are looked for in, the text beside it, and the rank of a choice."""
    rank = (KINDS.index(choice.kind), int(choice.why_not is not None))
    return f"{choice.name} {choice.title}".strip(), f"{choice.hint} {choice.also}", rank


# --- what can be chosen


def palette_choices(page: ActionScreen) -> list[Choice]:
    """The choices on a page."""
    return [
        *_action_choices(page),
        *page.choices(),
        *_run_choices(page),
        *_profile_choices(page),
        *_gpu_choices(page),
        *_copy_choices(page),
        *_setting_choices(page),
    ]


def _action_choices(page: ActionScreen) -> Iterator[Choice]:
    """The actions of a page and the pages that its keys open."""
    context = page.context()
    for action in actions_in(page.SCOPE):
        if action.heading == "Move" or action.name == "palette" or not action.is_offered(context):
            continue
        kind = "page" if action.heading == "Go to" else "action"
        yield Choice(
            action.tooltip,
            action.key_word(context),
            partial(page.shell.perform, action.name),
            action.why_not(context),
            action.label,
            kind=kind,
            also=f"{action.name} {SYNONYMS.get(action.name, '')}",
        )


def _run_choices(page: ActionScreen) -> Iterator[Choice]:
    """The runs and studies of the snapshot."""
    shell = page.shell
    trials: dict[str, int] = {study.study_id: 0 for study in page.snapshot.studies}
    for row in page.snapshot.runs:
        run = row.run
        if run.study_id is not None:
            trials[run.study_id] = trials.get(run.study_id, 0) + 1
        title = f"Run {clean(run.run_id)}"
        do = partial(shell.open_run, run.run_id)
        yield Choice(title, run_state_text(run), do, name=run.run_id, kind="run", after=run.study_id or "")
    for study_id, count in trials.items():
        do = partial(shell.open_study, study_id)
        yield Choice(f"Study {clean(study_id)}", count_of(count, "trial"), do, name=study_id, kind="study")


def _profile_choices(page: ActionScreen) -> Iterator[Choice]:
    """The profiles by their files, which are not read: what checks profiles takes 14 MB."""
    shell = page.shell
    folders = (Path.cwd() / "profiles", shell.workspace.profiles, shipped_profiles())
    why_not = find("launch", "overview").why_not(page.context())
    for name in dict.fromkeys(path.stem for folder in folders for path in sorted(folder.glob("*.y*ml"))):
        do = partial(shell.launch_from, name)
        yield Choice(f"Launch {clean(name)}", "profile", do, why_not, kind="profile")


def _gpu_choices(page: ActionScreen) -> Iterator[Choice]:
    """The GPUs, each with its runs or first processes, else with what its row says of its use."""
    for gpu in page.snapshot.gpus:
        users = gpu.run_ids or [process.user or "?" for process in (gpu.processes or ())[:2]]
        user = ", ".join(users)
        if not user:
            user = "".join(text for text, _ in user_spans(gpu_row(page.snapshot, gpu), HINT_WIDTH))
        title = f"GPU {gpu.index} · {clean(gpu.name)[:TITLE_WIDTH]}"
        yield Choice(title, clean(user)[:HINT_WIDTH], partial(page.shell.open_gpu, gpu.uuid), kind="GPU")


def _copy_choices(page: ActionScreen) -> Iterator[Choice]:
    """What can be copied from a page, each with its first line."""
    for what, text in page.copyable():
        first_line, _, _ = text.strip().partition("\n")
        yield Choice(f"Copy {what}", clean(first_line)[:TITLE_WIDTH], partial(page.shell.copy, what, text))


def _setting_choices(page: ActionScreen) -> Iterator[Choice]:
    """Each value of each setting."""
    shell = page.shell
    for item in ITEMS:
        for value in item.values:
            change = partial(shell.change, **{item.name: value})
            hint = "current" if getattr(shell.settings, item.name) == value else "setting"
            yield Choice(f"Set {item.label}: {item.word(value)}", hint, change)


# --- matching: words in any order


def match_distance(typed: str, title: str, beside: str = "") -> int | None:
    """The distance of what was typed from a title, 0 for best; None for no match.

    Each typed word must be found, from best to worst: at the beginning of the title, at that of a word, inside a word,
    in the text ``beside`` it, or with a few letters left out.
    """
    total = 0
    for word in typed.lower().split():
        distance = _word_distance(word, title.lower(), beside.lower())
        if distance is None:
            return None
        total += distance
    return total


def _word_distance(word: str, title: str, beside: str) -> int | None:
    """The distance of one word, as in `match_distance`; all texts are in lower case."""
    index = title.find(word)
    if index == 0:
        return 0
    if index > 0:
        begins_word = not title[index - 1].isalnum() or f" {word}" in title
        return _WORD if begins_word else _INSIDE
    if word in beside:
        return _BESIDE
    with_letters_between = r"\b" + ".{0,3}".join(map(re.escape, word))
    if re.search(with_letters_between, title):
        return _LETTERS
    return None


def best_matches(
    targets: Sequence[Target], typed: str, texts_of: Callable[[Target], tuple[str, str, tuple[int, ...]]]
) -> list[Target]:
    """The targets that match, the best first.

    Args:
        targets: what is searched.
        typed: the words that are looked for.
        texts_of: the title of a target, the text beside it, and its rank among those that match equally well.
    """
    matches = []
    for index, target in enumerate(targets):
        title, beside, rank = texts_of(target)
        distance = match_distance(typed, title, beside)
        if distance is not None:
            matches.append((distance, rank, index))
    return [targets[index] for *_, index in sorted(matches)]
