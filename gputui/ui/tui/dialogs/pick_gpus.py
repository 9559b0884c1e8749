"""Choosing GPUs for a launch from a table with their free memory and occupants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult

from gputui.core.text import clean
from gputui.core.units import celsius, gibibytes, percent
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import Column, head_line, place, row_line
from gputui.ui.tui.widgets.dialog import Content, ListDialog

if TYPE_CHECKING:
    from gputui.profiles.gpu_checks import GpuSituation


@dataclass(frozen=True)
class GpuChoice:
    """One row. ``state`` names the occupant or the problem, in ``style``."""

    index: int
    name: str
    free_bytes: int | None
    total_bytes: int | None
    utilization_percent: float | None
    temperature_celsius: float | None
    state: str
    style: str
    is_chosen: bool
    is_recommended: bool


_COLUMNS: tuple[Column[GpuChoice], ...] = (
    Column("", 3, lambda row, _: [("[x]" if row.is_chosen else "[ ]", "accent" if row.is_chosen else "dim")]),
    Column("#", 3, lambda row, _: [(str(row.index), "label")], align=">"),
    Column(
        "free GiB",
        11,
        lambda row, _: [(gibibytes(row.free_bytes), "text"), (f" / {gibibytes(row.total_bytes, 0)}", "dim")],
        align=">",
    ),
    Column("util", 5, lambda row, _: [(percent(row.utilization_percent), "text")], align=">", importance=2),
    Column("temp", 6, lambda row, _: [(celsius(row.temperature_celsius), "text")], align=">", importance=3),
    Column("used by", 16, lambda row, _: [(row.state, row.style)], grow=2, most=60),
    Column("", 11, lambda row, _: [("recommended" if row.is_recommended else "", "good")], importance=1),
    Column("model", 18, lambda row, _: [(row.name, "dim")], importance=4, grow=1, most=32),
)


class PickGpusScreen(ListDialog[str]):
    """Answers with a selection in the syntax of the form's field (``0,2``)."""

    WIDTH = 100
    PANE_ID = "sheet"
    first_row = 1
    CLOSING: ClassVar = frozenset({"escape", "ctrl+c", "q"})

    def __init__(self, count: int, memory_bytes: int | None, chosen: Sequence[str] = ()) -> None:
        super().__init__()
        self._gpu_count = max(1, count)
        self._memory_bytes = memory_bytes
        self._chosen = set(chosen)

    def compose(self) -> ComposeResult:
        self._chosen = self._chosen or set(self._recommended())
        yield from super().compose()

    def _situation(self) -> GpuSituation | None:
        from gputui.profiles.situation import situation_of

        snapshot = self.shell.snapshot
        return situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined, snapshot.alerts.last)

    def _recommended(self) -> tuple[str, ...]:
        from gputui.profiles.recommend import recommend

        situation = self._situation()
        found = None if situation is None else recommend(self._gpu_count, situation, self._memory_bytes)
        return tuple(gpu.uuid for gpu in found or ())

    def choices(self) -> list[GpuChoice]:
        """The current rows."""
        situation, recommended = self._situation(), self._recommended()
        facts = {} if situation is None else {gpu.uuid: gpu for gpu in situation.facts}
        found = []
        for gpu in self.shell.snapshot.gpus:
            state, style = "free", "good"
            if situation is not None and gpu.uuid in facts:
                fact = facts[gpu.uuid]
                obstacle = situation.unusable_reason(fact, self._memory_bytes)
                hindrance = situation.busy_reason(fact, self._memory_bytes)
                worry = situation.warning(fact)
                if obstacle is not None:
                    state, style = obstacle, "bad"
                elif hindrance is not None:
                    state, style = hindrance.removeprefix("is used by "), "warn"
                elif worry is not None:
                    state, style = f"free, but {worry}", "warn"
            total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
            free = None if total is None or used is None else max(0, total - used)
            found.append(
                GpuChoice(
                    gpu.index, clean(gpu.name), free, total, gpu.utilization_percent, gpu.temperature_celsius,
                    state, style, gpu.uuid in self._chosen, gpu.uuid in recommended,
                )
            )  # fmt: skip
        return found

    @property
    def count(self) -> int:
        return len(self.shell.snapshot.gpus)

    def choose(self) -> None:
        """Take the GPU under the cursor, or leave it out."""
        if self.count:
            self._chosen ^= {self.shell.snapshot.gpus[self.place].uuid}

    def press(self, key: str) -> bool:
        if key == "enter":
            indices = [str(gpu.index) for gpu in self.shell.snapshot.gpus if gpu.uuid in self._chosen]
            # A single index without a comma would be a number of GPUs.
            self.dismiss((",".join(indices) + ("," if len(indices) == 1 else "")) if indices else None)
        elif key == "space":
            self.choose()
        elif key == "r":
            self._chosen = set(self._recommended())
        else:
            super().press({"j": "down", "k": "up"}.get(key, key))
        return True

    def content(self, width: int) -> Content:
        """The GPUs as they are in the newest snapshot."""
        choices = self.choices()
        placed = place(_COLUMNS, width - 2)
        lines: list[Line] = [[("  ", "text"), *head_line(placed, width - 2)]]
        for number in self.rows_in_view(self.app.size.height - 6):
            lines.append(self.row(number, row_line(placed, choices[number], width - 2)))
        if not choices:
            lines = [[("No GPU is known; 0 runs on the CPU.", "dim")]]
        number = sum(choice.is_chosen for choice in choices)
        note = f"{number} chosen · space takes · r recommended · ↵ done · esc back"
        return Content(f"Choose GPUs · the profile asks for {self._gpu_count}", lines, note)
