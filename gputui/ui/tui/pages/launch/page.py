"""The launch form: a profile's fields, the checks and the command that they lead to, and the start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.message import Message

from gputui.core.text import clean
from gputui.ui.tui import commands
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.dialogs.pick_gpus import PickGpusScreen
from gputui.ui.tui.dialogs.sheet import SheetScreen
from gputui.ui.tui.pages.launch.form import MORE, NAME, PLACE, Form, Prefill
from gputui.ui.tui.pages.launch.plan import (
    Plan,
    check_line,
    first_choice,
    is_same_file,
    last_params,
    make_plan,
    probe,
    read_profiles,
    read_target_names,
    survey_lines,
)
from gputui.ui.tui.pages.launch.view import LaunchView, launch_lines
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.tui.widgets.pane import Pane

if TYPE_CHECKING:
    from gputui.profiles.profile_file import ProfileEntry


@dataclass
class ProfilesRead(Message):
    """The profiles and the names of the targets were read."""

    entries: tuple[ProfileEntry, ...]
    targets: tuple[str, ...] = ()


@dataclass
class Surveyed(Message):
    """A target has answered about its state."""

    name: str
    lines: tuple[str, ...]


@dataclass
class Planned(Message):
    """The plan of the form's content number ``generation``. ``is_final``: no slower check follows."""

    generation: int
    plan: Plan
    is_final: bool


class LaunchScreen(ActionScreen):
    """The form. Every key without an action is text for the field under the cursor."""

    SCOPE: ClassVar[Scope] = "launch"

    def __init__(self, prefill: Prefill | None = None) -> None:
        super().__init__()
        self.page = Pane(id="launch")
        self.form = Form()
        self.plan: Plan | None = None
        self._prefill = prefill
        self._is_reading = True
        self._typed_ahead = 0
        self._generation = 0
        self._planned = 0
        self._is_planning = False
        self._is_eager = False

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.notice, self.page, self.message, self.footer)

    def on_mount(self) -> None:
        workspace = self.shell.workspace
        path = self._prefill.path if self._prefill is not None else None
        files = () if path is None else (path,)

        def work() -> None:
            self.post_message(ProfilesRead(read_profiles(workspace, Path.cwd(), files), read_target_names(workspace)))

        self._in_thread(work)

    def interest(self) -> None:
        """None: the form shows nothing of the feed, which goes on reading for the page below."""

    def context(self) -> Context:
        return replace(super().context(), blocked_by=self._blocked_by())

    def _blocked_by(self) -> str | None:
        """Why the form cannot be started, as far as known."""
        for key, problem in self.form.problems.items():
            return f"{key}: {problem}"
        if self.form.entry is None:
            return "Reading the profiles…" if self._is_reading else "There is no profile to launch."
        # A plan of earlier content does not count.
        return self.plan.blocked_by if self.plan is not None and self._planned == self._generation else None

    def draw(self, width: int, height: int) -> None:
        rows = height - self.draw_frame(width)
        snapshot = self.snapshot
        view = LaunchView(
            self.form,
            self.plan,
            snapshot.gpus,
            snapshot.machine.quarantined,
            snapshot.at,
            self._is_reading,
            self.trail(width),
        )
        self.page.show(launch_lines(view, width, rows), height=rows)

    # --- what arrives from threads

    @staticmethod
    def _in_thread(work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="launch form", daemon=True).start()

    def on_profiles_read(self, message: ProfilesRead) -> None:
        self._is_reading = False
        names = [entry.name for entry in message.entries]
        prefill = self._prefill
        last = last_params([row.run for row in self.snapshot.runs])
        chosen = None
        if prefill is not None and prefill.path is not None:
            same = (n for n, entry in enumerate(message.entries) if is_same_file(entry.path, prefill.path))
            chosen = next(same, None)
        elif prefill is not None and prefill.profile in names:
            chosen = names.index(prefill.profile)
        if prefill is not None and prefill.run_id is not None and chosen is None:
            # Another profile in its place would launch something else.
            if self in self.app.screen_stack:
                self.pop_until_active()
                self.app.pop_screen()
            gone = clean(prefill.path or prefill.profile)
            self.shell.say(f"{gone}, the profile of {clean(prefill.run_id)}, is gone.", "warning")
            return
        if prefill is None or chosen is None:
            runs = [row.run for row in self.snapshot.runs]
            first = first_choice(message.entries, runs, len(self.snapshot.gpus))
            self._change(Form(message.entries, last, message.targets).choose(first + self._typed_ahead))
        else:
            form = Form(message.entries, last, message.targets).choose(chosen + self._typed_ahead)
            self._change(form if self._typed_ahead else form.prefilled(prefill))

    def _change(self, form: Form) -> None:
        """Take changed content, and compute its plan."""
        is_same = form.edits == self.form.edits and form.chosen == self.form.chosen and form.entries
        self.form = form
        if not is_same:
            self._generation += 1
            self._is_eager = False
            if form.problems:
                self.plan = Plan(problems=tuple(f"{key}: {text}" for key, text in form.problems.items()))
            self._plan_next()
        self.changed()

    @property
    def is_settled(self) -> bool:
        """Whether the form's plan is complete."""
        return not self._is_reading and self._planned == self._generation

    def _plan_next(self) -> None:
        """Compute the plan of the newest content, unless one is being computed."""
        if self._is_planning or self._planned == self._generation:
            return
        self._is_planning = True
        generation, form, snapshot = self._generation, self.form, self.snapshot
        workspace = self.shell.workspace

        def work() -> None:
            plan = make_plan(form, snapshot, workspace)
            slow = plan.spec is not None and plan.blocked_by is None
            self.post_message(Planned(generation, plan, is_final=not slow))
            if slow:
                self.post_message(Planned(generation, probe(plan, workspace), is_final=True))

        self._in_thread(work)

    def on_planned(self, message: Planned) -> None:
        if message.is_final:
            self._is_planning = False
            self._planned = message.generation
        if message.generation == self._generation and not self.form.problems:
            self.plan = message.plan
            if self._is_eager:
                self._is_eager = False
                self.do_start()
        self._plan_next()
        self.changed()

    # --- keys

    def take_key(self, event: events.Key) -> bool:
        item = self.form.current
        # Help is the same key everywhere; a question mark can be pasted.
        if item is None or event.key == "question_mark":
            return False
        if event.key in ("left", "right") and (item.choices or item.key == MORE):
            return False
        edit = None if item.key == MORE else self.form.edits[item.key].press(event.key)
        if edit is not None:
            form = self.form.edit(edit)
        elif event.character is not None and event.is_printable:
            form = self.form.type(event.character)
        else:
            return False
        self.shell.message = ("", "info")
        self._change(form)
        return True

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._change(self.form.type(event.text))

    def do_value_next(self) -> None:
        self._change(self.form.turn(1))

    def do_value_previous(self) -> None:
        self._change(self.form.turn(-1))

    def do_field_next(self) -> None:
        self._change(self.form.move(1))

    def do_field_previous(self) -> None:
        self._change(self.form.move(-1))

    def _turn(self, by: int) -> None:
        """Choose another profile; keys pressed before the profiles were read count."""
        if self._is_reading:
            self._typed_ahead += by
            return
        self.plan = None
        self._change(self.form.choose(self.form.chosen + by))

    do_profile_next = partialmethod(_turn, 1)
    do_profile_previous = partialmethod(_turn, -1)

    def do_choose_gpus(self) -> None:
        """Choose GPUs from a table with their occupants."""
        if self.form.entry is None or self.form.entry.profile is None:
            return
        spec = self.plan.spec if self.plan is not None else None
        count = spec.gpus.count if spec is not None else 1
        memory_bytes = spec.gpus.memory_bytes if spec is not None else None
        chosen = spec.gpus.uuids if spec is not None else ()

        def take(text: str | None) -> None:
            if text is not None:
                self._change(self.form.with_gpus(text))

        self.app.push_screen(PickGpusScreen(count, memory_bytes, chosen), take)

    def do_last_values(self) -> None:
        """Fill in the parameters of the newest run of this profile."""
        entry = self.form.entry
        last = self.form.last_params.get(entry.name) if entry is not None else None
        if entry is None or not last:
            self.shell.say("No run of this profile is in the list.")
            return
        self._change(self.form.prefilled(Prefill(entry.name, last)))

    def do_preview(self) -> None:
        plan = self.plan
        if plan is None:
            self.shell.say("Still checking; a moment.")
            return
        lines = [*plan.problems, *plan.description, "", *map(check_line, plan.checks)]
        self.app.push_screen(SheetScreen("What would be started", tuple(lines)))

    def do_ask_target(self) -> None:
        """Ask the target about its state, in a thread; `Surveyed` brings the answer."""
        name = self.form.target
        if name is None:
            self.shell.say(f"Write the name of a target into the field {PLACE!r} first.")
            return
        form, workspace = self.form, self.shell.workspace
        self.shell.say(f"Asking {name}…")
        self._in_thread(lambda: self.post_message(Surveyed(name, tuple(survey_lines(form, workspace)))))

    def on_surveyed(self, message: Surveyed) -> None:
        self.shell.message = ("", "info")
        self.app.push_screen(SheetScreen(f"{message.name} now", message.lines))

    def do_cancel(self) -> None:
        self.app.pop_screen()

    def do_start(self) -> None:
        """Launch the run, after the checks if they are still running."""
        plan, blocked_by = self.plan, self._blocked_by()
        if blocked_by is not None:
            self.shell.say(blocked_by, "warning")
            return
        if plan is None or plan.spec is None or self._planned != self._generation:
            self._is_eager = True
            self.shell.say("Launching as soon as the checks are through…")
            return
        spec, name, workspace = plan.spec, self.form.text(NAME).strip() or None, self.shell.workspace
        self.app.pop_screen()
        if isinstance(self.app.screen, ActionScreen) and self.app.screen.SCOPE == "profiles":
            self.app.pop_screen()
        self.shell.ask_by(f"Launch {name or spec.name}", lambda: commands.launch(workspace, spec, name))
