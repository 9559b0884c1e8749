"""What can be asked for that concerns the machine rather than one run: the queue, and GPUs in quarantine."""

from __future__ import annotations

from gputui.charts.safe_text import clean
from gputui.store.views import GpuView
from gputui.tui.widgets.page import ActionScreen


class MachineActions(ActionScreen):
    """Writes the commands; the table of actions has made sure that they are possible."""

    @property
    def gpu_in_question(self) -> GpuView | None:
        """The GPU that an action would be about."""
        return None

    def do_queue_toggle(self) -> None:
        if self.snapshot.machine.queue_pause is not None:
            self.gputui.ask("Open the queue", "queue_resume", None, {})
            return
        text = (
            "Pause the queue? Nothing new starts until it is opened again; what runs goes on and is recovered as ever."
        )
        self.gputui.confirmed(
            "Pause the queue", text, lambda: self.gputui.ask("Pause the queue", "queue_pause", None, {})
        )

    def do_queue_up(self) -> None:
        self._move_in_queue("Earlier", "up")

    def do_queue_down(self) -> None:
        self._move_in_queue("Later", "down")

    def _move_in_queue(self, word: str, place: str) -> None:
        run = self.run_in_question
        if run is not None:
            self.gputui.ask(f"{word} in the queue", "queue_move", run.run_id, {"place": place})

    def do_clear_gpu(self) -> None:
        held = self.snapshot.machine.quarantined
        chosen = self.gpu_in_question
        if chosen is None or chosen.uuid not in held:
            chosen = next((gpu for gpu in self.snapshot.gpus if gpu.uuid in held), None)
        if chosen is None:
            return
        failed = held[chosen.uuid]
        where = f" under {failed.run_id}" if failed.run_id else ""
        text = f"Let runs have GPU {chosen.index} again? It failed{where}: {clean(failed.reason)}"
        words, uuid = f"Clear GPU {chosen.index}", chosen.uuid
        self.gputui.confirmed(words, text, lambda: self.gputui.ask(words, "clear_gpu", None, {"uuid": uuid}))
