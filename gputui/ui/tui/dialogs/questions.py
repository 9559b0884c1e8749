"""Dialogs that ask one question: yes or no, one of a few, or a line to type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.recovery.watch.overrides import parse_seconds
from gputui.recovery.watch.rules import RULES
from gputui.runs.labels import LabelError, checked_labels
from gputui.store.alerts import AlertView
from gputui.store.runs import Run
from gputui.ui.tui.dialogs.typed_time import EXAMPLES, TypedTimeError, parse_moment
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.layout.moments import day_and_clock
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.widgets.dialog import Answer, Content, Dialog, ListDialog
from gputui.ui.tui.widgets.line_edit import LineEdit


class ConfirmScreen(Dialog[bool]):
    """Answers True for y, None for n or escape. Other keys are ignored, also Enter."""

    PANE_ID = "confirm"
    CLOSING: ClassVar = frozenset({"n", "N", "escape", "q", "ctrl+c"})

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def press(self, key: str) -> bool:
        if key in ("y", "Y"):
            self.dismiss(True)
        return True

    def content(self, width: int) -> Content:
        body: list[Line] = [[(part, "text")] for part in wrap(self._text, width)]
        return Content(self._title, [*body, [], [("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")]])


# --- one of a few


class MenuItem(NamedTuple):
    """A choice and its key; ``why_not`` is a sentence if it is not possible."""

    key: str
    label: str
    words: str
    why_not: str | None = None
    do: Callable[[], object] = str


class MenuScreen(ListDialog[MenuItem]):
    """Answers with the chosen item. One that is not possible is dim, with its reason."""

    WIDTH = 76
    PANE_ID = "confirm"

    def __init__(self, title: str, items: Sequence[MenuItem], texts: Sequence[str] = ()) -> None:
        super().__init__()
        self.items = items
        self.place = next((number for number, item in enumerate(items) if item.why_not is None), 0)
        self._title = title
        self._texts = texts

    @property
    def count(self) -> int:
        return len(self.items)

    def choose(self) -> None:
        item = self.items[self.place]
        if item.why_not is None:
            self.dismiss(item)

    def press(self, key: str) -> bool:
        place = next((number for number, item in enumerate(self.items) if item.key == key), None)
        if place is None:
            return super().press(key)
        self.place = place
        self.choose()
        return True

    def content(self, width: int) -> Content:
        lines: list[Line] = [[(part, "text")] for text in self._texts for part in wrap(text, width)]
        self.first_row = len(lines)
        label_width = max(len(item.label) for item in self.items) + 2
        for number in self.rows_in_view(self.count):
            item = self.items[number]
            styles = ("key", "text") if item.why_not is None else ("dim", "dim")
            label = [(f"{item.key}  ", styles[0]), (f"{item.label:<{label_width}}", styles[1])]
            words = (item.why_not or item.words).removeprefix(f"{self._title} ")
            lines.append(self.row(number, fit_line([*label, (words, "dim")], width - 2)))
        return Content(self._title, lines, "↵ or its key chooses   esc back")


class SignalScreen(MenuScreen):
    """Answers with a chosen and confirmed signal; its label is the name."""

    def __init__(self, about: str, warning: str = "") -> None:
        items = [
            MenuItem("t", "TERM", "asks it to end"),
            MenuItem("i", "INT", "interrupts it, as ctrl+c would"),
            MenuItem("k", "KILL", "ends it at once; it saves nothing"),
            MenuItem("s", "STOP", "stops it where it is"),
            MenuItem("c", "CONT", "continues it after a stop"),
        ]
        super().__init__("Signal", items, (about, warning))

    def choose(self) -> None:
        item = self.items[self.place]

        def decide(is_sure: bool | None) -> None:
            self.dismiss(item if is_sure else None)

        self.app.push_screen(ConfirmScreen("Signal", f"Send {item.label}? It {item.words}."), decide)


# --- a line to type


class FormScreen(Dialog[Answer]):
    """Lines to type; tab and the arrows choose one. A subclass judges them in ``check``."""

    heading: str
    note: str
    text = ""
    """A sentence above the lines."""

    def __init__(self, **fields: str) -> None:
        super().__init__()
        self.names = tuple(fields)
        self.edits = [LineEdit.at_end(text) for text in fields.values()]
        self.place = 0
        self.edit = self.edits[0]

    def check(self, texts: list[str]) -> tuple[Answer | None, str]:
        """The answer, None if it is not valid, and words about it."""
        raise NotImplementedError

    def edited(self) -> None:
        assert self.edit is not None
        self.edits[self.place] = self.edit

    def click(self, row: int) -> None:
        if 0 <= row < len(self.edits):
            self.place = row
            self.edit = self.edits[row]

    def press(self, key: str) -> bool:
        if key == "enter":
            answer = self.check([edit.text for edit in self.edits])[0]
            if answer is not None:
                self.dismiss(answer)
        elif key in ("tab", "down", "shift+tab", "up"):
            self.click((self.place + (1 if key in ("tab", "down") else -1)) % len(self.edits))
        else:
            return False
        return True

    def content(self, width: int) -> Content:
        lines: list[Line] = [[(part, "text")] for part in wrap(self.text, width)]
        label_width = max(map(len, self.names)) + 1
        for number, (name, edit) in enumerate(zip(self.names, self.edits, strict=True)):
            is_chosen = number == self.place
            shown = edit.spans(width - label_width) if is_chosen else [(clean(edit.text), "text")]
            lines.append([(f"{name:<{label_width}}", "tab" if is_chosen else "label"), *shown])
        texts = [edit.text for edit in self.edits]
        answer, words = self.check(texts)
        style = "dim" if answer is not None or not any(text.strip() for text in texts) else "warn"
        lines += [[], *([(part, style)] for part in wrap(words, width))]
        return Content(self.heading, lines, self.note)


class MomentScreen(FormScreen[float]):
    """Answers with the typed moment in UTC unix seconds, and shows it while typing."""

    PANE_ID = "moment"
    heading = "Go to time"
    note = "↵ go   esc back"

    def __init__(self, now: float) -> None:
        super().__init__(time="")
        self._now = now

    def check(self, texts: list[str]) -> tuple[float | None, str]:
        if not texts[0].strip():
            return None, f"for example {EXAMPLES}"
        try:
            at = parse_moment(texts[0], self._now)
        except TypedTimeError as error:
            return None, str(error)
        return at, f"{day_and_clock(at)}, {duration(self._now - at)} ago"


class ExtendScreen(FormScreen[int]):
    """Answers with the typed number of trials."""

    heading = "Extend the study"
    note = "↵ extend   esc back"

    def __init__(self, study_id: str) -> None:
        super().__init__(trials="")
        self._study_id = study_id

    def check(self, texts: list[str]) -> tuple[int | None, str]:
        number = int(texts[0]) if texts[0].strip().isdecimal() else 0
        is_valid = 0 < number < 100_000
        return number if is_valid else None, f"{self._study_id} gets that many more trials."


class Silence(NamedTuple):
    """A duration, and whether it is for all subjects of the rule."""

    seconds: float
    is_everywhere: bool


class SilenceScreen(FormScreen[Silence]):
    """Answers with a typed duration. Tab switches between this subject and all of the rule."""

    PANE_ID = "silence"
    heading = "Silence"
    note = "↵ silence   tab this / everywhere   esc back"

    def __init__(self, alert: AlertView, now: float) -> None:
        super().__init__(time="1h")
        self._title = RULES[alert.rule].title if alert.rule in RULES else clean(alert.rule)
        self._subject = clean(alert.subject_name)
        self._now = now
        self._is_everywhere = True
        self.press("tab")

    def press(self, key: str) -> bool:
        if key not in ("tab", "shift+tab"):
            return super().press(key)
        self._is_everywhere = not self._is_everywhere
        self.text = f"{self._title} {'everywhere' if self._is_everywhere else f'for {self._subject}'}"
        return True

    def check(self, texts: list[str]) -> tuple[Silence | None, str]:
        seconds = 0.0 if texts[0].strip() == "0" else parse_seconds(texts[0].strip())
        if seconds is None:
            return None, "a time such as 30min, 2h or 1d, of at most 30 days; 0 ends it"
        until = dated_clock(self._now + seconds, self._now)
        words = f"no notifications until {until} ({duration(seconds)})"
        return Silence(seconds, self._is_everywhere), words if seconds else "no longer silenced"


class LabelsScreen(FormScreen[dict[str, str | list[str]]]):
    """Answers with the changes of a run's labels, as arguments of the command ``label``."""

    WIDTH = 78
    note = "tab field   ↵ save   esc back"
    _HELP = (
        "Its id stays; commands take either.",
        "Separate tags with spaces. /#tag filters the runs by one.",
        "One line: why it was launched, what came of it.",
    )

    def __init__(self, run: Run) -> None:
        super().__init__(name=run.name, tags="".join(f"{tag} " for tag in run.tags), note=run.note or "")
        self._run = run
        self.heading = f"Labels of {clean(run.run_id)}"
        self.click(1)

    def check(self, texts: list[str]) -> tuple[dict[str, str | list[str]] | None, str]:
        run, (name, tags, note) = self._run, texts
        try:
            new = checked_labels(name, tags.replace(",", " ").split(), note)
        except LabelError as error:
            return None, str(error)
        added, removed = (sorted(set(a) - set(b)) for a, b in ((new.tags, run.tags), (run.tags, new.tags)))
        wanted: dict[str, tuple[str | list[str], str | list[str]]] = {
            "name": (new.name, run.name), "note": (new.note, run.note or ""),
            "add": (added, []), "remove": (removed, []),
        }  # fmt: skip
        return {name: text for name, (text, before) in wanted.items() if text != before}, self._HELP[self.place]
