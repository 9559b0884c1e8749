"""Choosing GPUs for a launch from a table of how each stands now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.tui.data.snapshot import Snapshot
from gputui.tui.dialogs.gpu_table import GpuChoice, picker_lines
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import fit_line
from gputui.tui.shell import Shell
from gputui.tui.widgets.pane import Pane

if TYPE_CHECKING:
    from gputui.profiles.gpu_checks import GpuSituation


HEAD_LINES = 2
"""The frame and the names of the columns, above the rows."""


class PickGpusScreen(ModalScreen[str | None]):
    """Answers with a selection as the form's field takes it (``0,2``), or None when nothing was chosen."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 100

    def __init__(self, count: int, memory_bytes: int | None, chosen: Sequence[str] = ()) -> None:
        super().__init__()
        self._count = max(1, count)
        self._memory_bytes = memory_bytes
        self._chosen = set(chosen)
        self._cursor = 0
        self._top = 0
        self._pane = Pane(id="sheet")

    def compose(self) -> ComposeResult:
        if not self._chosen:
            self._chosen = set(self._recommended())
        self.paint()
        yield self._pane

    def on_resize(self) -> None:
        self.paint()

    @property
    def _snapshot(self) -> Snapshot:
        return cast("Shell", self.app).snapshot

    def _situation(self) -> GpuSituation | None:
        from gputui.profiles.situation import situation_of

        snapshot = self._snapshot
        return situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined)

    def _recommended(self) -> tuple[str, ...]:
        from gputui.profiles.recommend import recommend

        situation = self._situation()
        found = None if situation is None else recommend(self._count, situation, self._memory_bytes)
        return tuple(gpu.uuid for gpu in found or ())

    def choices(self) -> list[GpuChoice]:
        """The rows as they stand now."""
        situation, recommended = self._situation(), self._recommended()
        facts = {} if situation is None else {gpu.uuid: gpu for gpu in situation.facts}
        found = []
        for gpu in self._snapshot.gpus:
            state, style = "free", "good"
            if situation is not None and gpu.uuid in facts:
                fact = facts[gpu.uuid]
                obstacle = situation.obstacle(fact, self._memory_bytes)
                hindrance = situation.hindrance(fact, self._memory_bytes)
                worry = situation.worry(fact)
                if obstacle is not None:
                    state, style = obstacle, "bad"
                elif hindrance is not None:
                    state, style = situation.holders.get(fact.uuid, hindrance), "warn"
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

    def on_key(self, event: events.Key) -> None:
        event.stop()
        gpus = self._snapshot.gpus
        if event.key in ("escape", "ctrl+c", "q"):
            self.dismiss(None)
            return
        if event.key == "enter":
            indices = [str(gpu.index) for gpu in gpus if gpu.uuid in self._chosen]
            # One index alone would be a number of GPUs.
            self.dismiss((",".join(indices) + ("," if len(indices) == 1 else "")) if indices else None)
            return
        if event.key in ("down", "j"):
            self._cursor = min(self._cursor + 1, max(0, len(gpus) - 1))
        elif event.key in ("up", "k"):
            self._cursor = max(0, self._cursor - 1)
        elif event.key == "space" and self._cursor < len(gpus):
            self._chosen ^= {gpus[self._cursor].uuid}
        elif event.key == "r":
            self._chosen = set(self._recommended())
        self.paint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._cursor = min(self._cursor + 1, max(0, len(self._snapshot.gpus) - 1))
        self.paint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._cursor = max(0, self._cursor - 1)
        self.paint()

    def on_click(self, event: events.Click) -> None:
        """A click chooses a row, one on the chosen row takes the GPU or leaves it."""
        event.stop()
        gpus = self._snapshot.gpus
        place = self._top + event.y - HEAD_LINES
        if event.widget is self._pane and event.y >= HEAD_LINES and place < len(gpus):
            if place == self._cursor:
                self._chosen ^= {gpus[place].uuid}
            self._cursor = place
            self.paint()

    def paint(self) -> None:
        """Draw the GPUs as they stand in the newest snapshot."""
        columns, rows = self.app.size
        width = min(self.WIDTH, columns)
        choices = self.choices()
        room = max(1, min(len(choices), rows - 6))
        self._top = min(max(self._top, self._cursor - room + 1), self._cursor)
        lines: list[Line] = picker_lines(choices, self._cursor, self._top, room, width - 4)
        if not choices:
            lines = [fit_line([("No GPU is known; a run can go on the CPU with 0.", "dim")], width - 4)]
        number = sum(choice.is_chosen for choice in choices)
        chosen = "1 chosen" if number == 1 else f"{number} chosen"
        note = f"{chosen} · space takes · r recommended · ↵ done · esc back"
        shown = box(f"Choose GPUs · the profile asks for {self._count}", lines, width, note)
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))
