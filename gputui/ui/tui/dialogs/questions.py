"""Dialogs that ask one question: yes or no, one of a few, or a line to type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.recovery.watch.overrides import parse_seconds
from gputui.recovery.watch.rules import RULES
from gputui.runs.labels import LabelError, checked_labels, checked_tag
from gputui.store.alerts import AlertView
from gputui.store.runs import Run
from gputui.ui.tui.layout.columns import wrap
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.views.run_words import shared_tag_words
from gputui.ui.views.words import dated_clock

Answer = TypeVar("Answer")


class ConfirmScreen(Dialog):
    """Calls ``do`` after y. Enter, which may have been typed for the page, means no."""

    PANE_ID = "confirm"
    CLOSING: ClassVar = frozenset({"n", "N", "enter", "escape", "q", "ctrl+c"})
    keys = (("y", "yes"), ("enter n", "no"))

    def __init__(self, title: str, text: str, do: Callable[[], object]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._do = do

    def press(self, key: str) -> bool:
        if key in ("y", "Y"):
            self.dismiss(None)
            self._do()
        return True

    def content(self, width: int) -> Content:
        return Content(self._title, [[(part, "text")] for part in wrap(self._text, width)])


class MenuItem(NamedTuple):
    """A choice of a menu.

    Attributes:
        effect: what it does, in words.
        why_not: a sentence if it is not possible now.
    """

    key: str
    label: str
    effect: str
    do: Callable[[], object]
    why_not: str | None = None


class MenuScreen(Dialog):
    """Carries out the chosen item. One that is not possible is dim, with its reason."""

    WIDTH = 76
    PANE_ID = "confirm"
    keys = (("enter", "choose"), ("escape", "back"))

    def __init__(self, title: str, items: Sequence[MenuItem], texts: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._items = items
        self._texts = texts
        self.cursor = next((number for number, item in enumerate(items) if item.why_not is None), 0)

    def choose(self) -> None:
        item = self._items[self.cursor]
        if item.why_not is None:
            self.dismiss(None)
            item.do()

    def press(self, key: str) -> bool:
        number = next((number for number, item in enumerate(self._items) if item.key == key), None)
        if number is not None:
            self.cursor = number
            self.choose()
        return number is not None

    def content(self, width: int) -> Content:
        lines: list[Line] = [[(part, "text")] for text in self._texts for part in wrap(text, width)]
        label_width = max(len(item.label) for item in self._items) + 2
        rows: list[Line] = []
        for item in self._items:
            key = f"{item.key}  "
            label = f"{item.label:<{label_width}}"
            if item.why_not is None:
                rows.append([(key, "key"), (label, "text"), (item.effect, "dim")])
            else:
                reason = item.why_not.replace(f"{self._title} ", "it ", 1)
                rows.append([(key, "dim"), (label, "dim"), (reason, "dim")])
        return Content(self._title, lines, rows)


class FormScreen(Dialog, Generic[Answer]):
    """Lines to type.

    Args:
        verb: what Enter does, in a word.
        fields: the text that each line begins with, by its name.
        check: returns the answer for the typed texts, None if it is not valid, and a remark about it.
        take: gets the answer after Enter.

    Attributes:
        texts: sentences above the lines; with one line to type, tab chooses among them.
        text_number: the chosen one.
    """

    WIDTH = 76
    IS_MARKED = False
    PANE_ID = "form"

    def __init__(
        self,
        title: str,
        verb: str,
        fields: Mapping[str, str],
        check: Callable[[FormScreen[Answer]], tuple[Answer | None, str]],
        take: Callable[[Answer], object],
    ) -> None:
        super().__init__()
        self._title = title
        self._check = check
        self._take = take
        self.keys = (("enter", verb), ("escape", "back"))
        if len(fields) > 1:
            self.keys = (("tab", "field"), *self.keys)
        self._names = [clean(name) for name in fields]
        self.edits = [LineEdit.at_end(text) for text in fields.values()]
        self.texts: Sequence[str] = ("",)
        self.text_number = 0

    @property
    def typed(self) -> list[str]:
        """The text of each line."""
        return [edit.text.strip() for edit in self.edits]

    def press(self, key: str) -> bool:
        is_turned = key in ("tab", "shift+tab") and len(self.texts) > 1
        self.text_number = (self.text_number + is_turned) % len(self.texts)
        if key != "enter":
            return is_turned
        answer, _ = self._check(self)
        if answer is not None:
            self.dismiss(None)
            self._take(answer)
        return True

    def content(self, width: int) -> Content:
        lines: list[Line] = [[(part, "text")] for part in wrap(self.texts[self.text_number], width)]
        label_width = max(map(len, self._names)) + 1
        rows: list[Line] = []
        for number, (name, edit) in enumerate(zip(self._names, self.edits, strict=True)):
            label = f"{name:<{label_width}}"
            if number == self.cursor:
                rows.append([(label, "tab"), *edit.spans(width - label_width)])
            else:
                rows.append([(label, "label"), (clean(edit.text), "text")])
        answer, remark = self._check(self)
        style = "dim" if answer is not None or not any(self.typed) else "warn"
        return Content(self._title, lines, rows, [[], *([(part, style)] for part in wrap(remark, width))])


LabelChanges = dict[str, str | list[str]]


def labels_form(run: Run, take: Callable[[LabelChanges], object]) -> FormScreen[LabelChanges]:
    """Ask for changes of a run's labels, as arguments of the command ``label``."""
    hints = (
        "Its id stays; commands take either.",
        "Separate tags with spaces. /#tag filters the runs by one.",
        "One line: why it was launched, what came of it.",
    )

    def check(form: FormScreen[LabelChanges]) -> tuple[LabelChanges | None, str]:
        name, tags, note = form.typed
        try:
            new = checked_labels(name, tags.replace(",", " ").split(), note)
        except LabelError as error:
            return None, str(error)
        added = sorted(set(new.tags) - set(run.tags))
        removed = sorted(set(run.tags) - set(new.tags))
        changes: LabelChanges = {}
        if new.name != run.name:
            changes["name"] = new.name
        if new.note != (run.note or ""):
            changes["note"] = new.note
        if added:
            changes["add"] = added
        if removed:
            changes["remove"] = removed
        return changes, hints[form.cursor]

    fields = {"name": run.name, "tags": "".join(f"{tag} " for tag in run.tags), "note": run.note or ""}
    form = FormScreen(f"Labels of {clean(run.run_id)}", "save", fields, check, take)
    form.cursor = 1
    return form


def tags_form(runs: Sequence[Run], take: Callable[[LabelChanges], object]) -> FormScreen[LabelChanges]:
    """Ask for tags that several runs get and lose, as arguments of the command ``label``."""

    def check(form: FormScreen[LabelChanges]) -> tuple[LabelChanges | None, str]:
        try:
            added, removed = ([checked_tag(tag) for tag in text.replace(",", " ").split()] for text in form.typed)
        except LabelError as error:
            return None, str(error)
        changes: LabelChanges = {name: tags for name, tags in (("add", added), ("remove", removed)) if tags}
        return changes or None, "Separate tags with spaces."

    form = FormScreen(f"Tags of {len(runs)} marked runs", "save", {"add": "", "remove": ""}, check, take)
    form.texts = (f"Their tags: {shared_tag_words(runs) or 'none'}.",)
    return form


def silence_form(alert: AlertView, now: float, take: Callable[[float, bool], object]) -> FormScreen[float]:
    """Ask for how long an alert is silenced. ``take`` gets seconds, and whether it is for all subjects of its rule."""

    def check(form: FormScreen[float]) -> tuple[float | None, str]:
        if form.typed[0] == "0":
            return 0.0, "no longer silenced"
        seconds = parse_seconds(form.typed[0])
        if seconds is None:
            return None, "a time such as 30min, 2h or 1d, of at most 30 days; 0 ends it"
        return seconds, f"no notifications until {dated_clock(now + seconds, now)} ({duration(seconds)})"

    title = clean(alert.rule)
    if alert.rule in RULES:
        title = RULES[alert.rule].title
    fields = {"time": "1h"}
    form = FormScreen("Silence", "silence", fields, check, lambda seconds: take(seconds, bool(form.text_number)))
    form.texts = (f"{title} for {clean(alert.subject_name)} (tab: everywhere)", f"{title} everywhere")
    return form
