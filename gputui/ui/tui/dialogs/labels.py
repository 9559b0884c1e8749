"""The form for the name, tags and note of a run."""

from __future__ import annotations

from typing import ClassVar

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.runs.labels import LabelError, Labels, checked_labels
from gputui.store.runs import Run
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.tui.widgets.line_edit import LineEdit

_FIELDS = ("name", "tags", "note")
_HELP = {
    "name": "Its id stays; commands take either.",
    "tags": "Separate tags with spaces. /#tag filters the runs by one.",
    "note": "One line: why it was launched, what came of it.",
}


def changes(run: Run, labels: Labels) -> dict[str, str | list[str]]:
    """The arguments of the command ``label`` that give ``run`` these labels; empty if nothing changes."""
    found: dict[str, str | list[str]] = {}
    if labels.name != run.name:
        found["name"] = labels.name
    if added := [tag for tag in labels.tags if tag not in run.tags]:
        found["add"] = added
    if removed := [tag for tag in run.tags if tag not in labels.tags]:
        found["remove"] = removed
    if labels.note != (run.note or ""):
        found["note"] = labels.note
    return found


class LabelsScreen(Dialog[Labels]):
    """Answers with the new labels. Tab and the arrows choose the field."""

    WIDTH: ClassVar = 78
    PANE_ID = "labels"

    def __init__(self, run: Run, field: str = "tags") -> None:
        super().__init__()
        self._run_id = run.run_id
        self._edits = {
            "name": LineEdit.at_end(run.name),
            "tags": LineEdit.at_end("".join(f"{tag} " for tag in run.tags)),
            "note": LineEdit.at_end(run.note or ""),
        }
        self._choose(_FIELDS.index(field))

    def _choose(self, place: int) -> None:
        self._field = _FIELDS[place % len(_FIELDS)]
        self.edit = self._edits[self._field]

    def edited(self) -> None:
        assert self.edit is not None
        self._edits[self._field] = self.edit

    def press(self, key: str) -> bool:
        if key == "enter":
            if isinstance(labels := self._typed(), Labels):
                self.dismiss(labels)
        elif key in ("tab", "down", "shift+tab", "up"):
            self._choose(_FIELDS.index(self._field) + (1 if key in ("tab", "down") else -1))
        else:
            return False
        return True

    def click(self, row: int) -> None:
        if 0 <= row < len(_FIELDS):
            self._choose(row)

    def _typed(self) -> Labels | str:
        """The typed labels, or what is wrong with them."""
        texts = {name: edit.text for name, edit in self._edits.items()}
        try:
            return checked_labels(texts["name"], texts["tags"].replace(",", " ").split(), texts["note"])
        except LabelError as error:
            return str(error)

    def content(self, width: int) -> Content:
        lines: list[Line] = []
        for name, edit in self._edits.items():
            is_chosen = name == self._field
            label = (f"{name:6}", "tab" if is_chosen else "label")
            text = edit.spans(width - 7) if is_chosen else [(clean(edit.text), "text")]
            lines.append(fit_line([label, (" ", "text"), *text], width))
        typed = self._typed()
        words, style = (typed, "warn") if isinstance(typed, str) else (_HELP[self._field], "dim")
        lines += [fit_line([], width), *([(part, style)] for part in wrap(words, width))]
        return Content(f"Labels of {clean(self._run_id)}", lines, "tab field   ↵ save   esc back")
