"""Choosing GPUs for a launch from a table with their free memory and occupants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from gputui.core.text import clean
from gputui.core.units import celsius, gibibytes, percent
from gputui.metrics.draw.parts import Line, Span
from gputui.store.hardware import GpuView
from gputui.ui.tui.widgets.dialog import Content, Dialog

if TYPE_CHECKING:
    from gputui.profiles.gpu_checks import GpuSituation


class PickGpusScreen(Dialog):
    """Hands ``take`` a selection in the syntax of the form's field (``0,2``)."""

    WIDTH = 100
    PANE_ID = "sheet"
    CLOSING: ClassVar = frozenset({"escape", "ctrl+c", "q"})
    keys = (("space", "take"), ("r", "recommended"), ("enter", "done"), ("escape", "back"))

    def __init__(
        self, count: int, memory_bytes: int | None, chosen: Sequence[str], take: Callable[[str], object]
    ) -> None:
        super().__init__()
        self._gpu_count = max(1, count)
        self._memory_bytes = memory_bytes
        self._take = take
        self._chosen = set(chosen) or self._recommended(self.shell.snapshot.situation)

    def _recommended(self, situation: GpuSituation | None) -> set[str]:
        from gputui.profiles.recommend import recommend

        if situation is None:
            return set()
        return {gpu.uuid for gpu in recommend(self._gpu_count, situation, self._memory_bytes) or ()}

    def _state(self, situation: GpuSituation | None, uuid: str) -> Span:
        """The occupant of a GPU, or what is wrong with it."""
        if situation is None:
            return "free", "good"
        condition = situation.condition(uuid)
        if (obstacle := situation.unusable_reason(condition, self._memory_bytes)) is not None:
            return obstacle.removeprefix("is "), "bad"
        if (hindrance := situation.busy_reason(condition, self._memory_bytes)) is not None:
            return hindrance.removeprefix("is used by ").removeprefix("is "), "warn"
        if condition.warning is not None:
            return f"free, but {condition.warning}", "warn"
        return "free", "good"

    def choose(self) -> None:
        """Take the GPU under the cursor, or leave it out."""
        if self.count:
            self._chosen ^= {self.shell.snapshot.gpus[self.cursor].uuid}

    def press(self, key: str) -> bool:
        if key == "space":
            self.choose()
        elif key == "r":
            self._chosen = self._recommended(self.shell.snapshot.situation)
        elif key == "enter":
            self._finish()
        return key in ("space", "r", "enter")

    def _finish(self) -> None:
        """Close, and hand over the chosen GPUs; none leave the field as it is."""
        indices = [str(gpu.index) for gpu in self.shell.snapshot.gpus if gpu.uuid in self._chosen]
        self.dismiss(None)
        if len(indices) == 1:
            # Without a comma it would be a number of GPUs.
            self._take(f"{indices[0]},")
        elif indices:
            self._take(",".join(indices))

    def content(self, width: int) -> Content:
        """The GPUs as they are in the newest snapshot."""
        gpus = self.shell.snapshot.gpus
        situation = self.shell.snapshot.situation
        recommended = self._recommended(situation)
        head = "No GPU is known; 0 runs on the CPU."
        if gpus:
            head = f"{'#':>9}{'free GiB':>13}{'util':>7}{'temp':>7}  used by"
        is_mixed = len({gpu.name for gpu in gpus}) > 1
        rows = []
        for gpu in gpus:
            row = self._gpu_row(gpu, situation, is_recommended=gpu.uuid in recommended)
            if is_mixed:
                row.append((f"  {clean(gpu.name)}", "dim"))
            rows.append(row)
        chosen_count = sum(gpu.uuid in self._chosen for gpu in gpus)
        title = f"Choose GPUs · {chosen_count} chosen, the profile asks for {self._gpu_count}"
        return Content(title, [[(head, "head")]], rows)

    def _gpu_row(self, gpu: GpuView, situation: GpuSituation | None, *, is_recommended: bool) -> Line:
        total = gpu.memory_total_bytes
        used = gpu.memory_used_bytes
        free = None
        if total is not None and used is not None:
            free = max(0, total - used)
        state, style = self._state(situation, gpu.uuid)
        if is_recommended:
            state += " · recommended"
        box = ("[x]", "accent") if gpu.uuid in self._chosen else ("[ ]", "dim")
        return [
            box,
            (f"{gpu.index:>4}", "label"),
            (f"{gibibytes(free):>8}", "text"),
            (f" /{gibibytes(total, 0):>3}", "dim"),
            (f"{percent(gpu.utilization_percent):>7}{celsius(gpu.temperature_celsius):>7}  ", "text"),
            (f"{state:<26}", style),
        ]
