"""Launching a run: the list of profiles, and the form of the chosen one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Hashable, Mapping, Sequence
from functools import partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import events

from gputui.core.config import Workspace
from gputui.core.redaction import redact_argv
from gputui.core.text import clean
from gputui.core.units import ago, count_of
from gputui.core.yaml_forms.problems import shown_path
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.spec import GpuRequest
from gputui.store.runs import Run
from gputui.ui.tui import commands
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.actions.key_lines import with_keys
from gputui.ui.tui.data.run_details import launched_params
from gputui.ui.tui.dialogs.pick_gpus import PickGpusScreen
from gputui.ui.tui.dialogs.sheet import SheetScreen
from gputui.ui.tui.layout.columns import Column, clip_words, fill_height, fit_line, paragraph, rule
from gputui.ui.tui.layout.lists import Listing, ListState
from gputui.ui.tui.pages.file_list import FileListScreen, FileRow, name_cell
from gputui.ui.tui.pages.launch import plan as plans
from gputui.ui.tui.pages.launch import typed, view
from gputui.ui.tui.pages.launch.form import GPUS, MORE, NAME, TARGET, Field, Form, Prefill
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.views.snapshot import Snapshot

if TYPE_CHECKING:
    from gputui.profiles.profile_file import Profile, ProfileEntry


SPARE = 6
"""Lines that stay free for the checks where all fields are shown."""


class LaunchScreen(ListingPage[Field]):
    """The form. Every key without an action is text for the field under the cursor."""

    SCOPE: ClassVar[Scope] = "launch"
    OPENS = "value_next"

    def __init__(self, prefill: Prefill) -> None:
        super().__init__(ListState(GPUS))
        self.form = Form()
        self.plan: plans.Plan | None = None
        """The newest plan; while another is being computed, that of earlier content."""
        self._prefill = prefill
        self._is_planning = False
        self._is_fresh = True
        self._is_eager = False
        self._room = view.FormRoom(0)

    def on_mount(self) -> None:
        workspace = self.shell.workspace
        prefill = self._prefill

        def read() -> tuple[ProfileEntry | str | None, tuple[str, ...]]:
            from gputui.profiles.init.typed_command import DraftError

            try:
                entry = plans.find_profile(prefill, workspace, Path.cwd())
            except DraftError as error:
                return str(error), ()
            return entry, plans.read_target_names(workspace)

        self.in_thread(read, self._take_profile)

    def interest(self) -> None:
        """None: the form shows nothing of the feed, which goes on reading for the page below."""

    def context(self) -> Context:
        return replace(super().context(), blocked_by=self._blocked_by())

    def _blocked_by(self) -> str | None:
        """The reason why the form cannot be started, as far as known."""
        if self.form.entry is None:
            return "Reading the profile…"
        if self.form.problems:
            return self.form.problems[0]
        if self.plan is not None and self.is_settled:
            return self.plan.blocked_by
        return None

    def make_listing(self) -> Listing[Field]:
        return view.form_listing(self.form, self.table.cursor, self._room, is_fresh=self._is_fresh)

    def summary(self) -> list[Span]:
        entry = self.form.entry
        if entry is None:
            return [(" · reading its file…", "dim")]
        about = ""
        if entry.profile is not None:
            about = clean(entry.profile.description or shlex.join(redact_argv(entry.profile.typed)))
        if not about:
            about = "comes with gputui" if entry.source == "shipped" else clean(str(entry.path))
        return [(f" {clean(entry.name)}", "accent"), (f" · {about}", "dim")]

    def draw(self, width: int, height: int) -> None:
        rows = height - 1 - self.draw_frame(width)
        inner = self.inner_width(width)
        plan = self.plan
        frame = int(inner < width)
        self.show_head(width)
        command = self.framed(view.command_lines(plan, inner, max(2, rows // 5)), width)
        room = rows - len(command)
        # The fields have their lines first; the checks have the rest.
        most = room - max(5, rows // 4)
        for has_headings, is_whole in ((True, True), (True, False), (False, False)):
            self._made = None
            self._room = view.FormRoom(width, has_headings, is_whole)
            needed = len(self.listing.items) + 1 + frame
            if needed + SPARE * is_whole <= most:
                break
        lines = self.list_lines(width, min(needed, most))
        if width < view.WHOLE_HINTS:
            hint = ""
            if (field := self.current) is not None and field.hint:
                hint = f"  {field.label}: {field.hint}"
            lines.append(fit_line([(hint, "dim")], width))
        gpus = view.gpu_words(self.snapshot.gpus, self.snapshot.machine)
        lines += self.framed(view.check_lines(plan, gpus, inner, room - len(lines) - frame), width)
        self.list.show([*lines, *command], height=rows)
        self.detail.show([])

    # --- what arrives from threads

    def _take_profile(self, result: tuple[ProfileEntry | str | None, tuple[str, ...]]) -> None:
        """Make the form of the profile; leave the page if that cannot be launched."""
        prefill = self._prefill
        entry, targets = result
        if entry is None or isinstance(entry, str):
            # Another profile in its place would launch something else.
            self.pop_until_active()
            self.app.pop_screen()
            self.shell.say(f"{self._obstacle(entry)}.", "warning")
            return
        last: Mapping[str, object] = prefill.params
        if prefill.run_id is None:
            newest = self._newest_run(entry)
            last = {} if newest is None else launched_params(newest)
        situation = self.snapshot.situation
        inventory = None if situation is None else situation.facts
        self._change(Form.of(entry, last, targets, inventory).fill(prefill))

    def _obstacle(self, error: str | None) -> str:
        """Why there is no profile: the ``error`` of a command, else its file is gone."""
        prefill = self._prefill
        if error is not None:
            return clean(error)
        profile = clean(prefill.path or prefill.profile)
        if prefill.run_id is None:
            return f"{profile} is gone"
        return f"{profile}, the profile of {clean(prefill.run_id)}, is gone"

    def _newest_run(self, entry: ProfileEntry) -> Run | None:
        """The newest run of a profile; a study chose the parameters of its trials."""
        runs = [row.run for row in self.snapshot.runs if row.run.study_id is None]
        runs = [run for run in runs if run.profile == entry.name]
        return max(runs, key=lambda run: run.sequence, default=None)

    def _change(self, form: Form) -> None:
        before = self.form
        self.form = form
        self._made = None
        if form.entry is not before.entry or form.fields is not before.fields:
            self._is_eager = False
            self._make_plan()
        self.changed()

    @property
    def is_settled(self) -> bool:
        return self.plan is not None and not self._is_planning

    def _make_plan(self) -> None:
        """Compute the plan of the newest content; one that is being computed is made anew then."""
        if not self._is_planning:
            self._is_planning = True
            form = self.form
            make = partial(plans.make_plan, form, self.snapshot, self.shell.workspace)
            self.in_thread(make, partial(self._take_plan, form))

    def _take_plan(self, form: Form, plan: plans.Plan) -> None:
        workspace = self.shell.workspace
        if form.fields is not self.form.fields:
            self._is_planning = False
            self._make_plan()
            return
        # With keys of the overview in place of commands for a shell.
        overview = Context("overview", is_ascii=self.shell.is_ascii, keys=self.shell.keys.on("overview"))
        with_keys_there = partial(with_keys, context=overview, where=" on the overview")
        checks = [
            replace(check, detail=with_keys_there(check.detail), remedy=with_keys_there(check.remedy or ""))
            for check in plan.checks
        ]
        self.plan = replace(plan, checks=tuple(checks), problems=tuple(map(with_keys_there, plan.problems)))
        self._is_planning = not plan.is_whole and plan.blocked_by is None
        if self._is_planning:
            self.in_thread(lambda: plans.probe(plan, workspace), partial(self._take_plan, form))
        self.changed()
        if self._is_eager and self.is_settled:
            self.do_start()

    # --- keys

    def take_key(self, event: events.Key) -> bool:
        field = self.current
        # Help is the same key everywhere; a question mark can be pasted.
        if field is None or field.key == MORE or event.key == "question_mark":
            return False
        if event.key in ("left", "right") and field.choices:
            return False
        edit = field.edit.press(event.key)
        if edit is None and event.character is not None and event.is_printable:
            edit = self._typed(field, event.character)
        if edit is None:
            return False
        self._fill(field.key, edit)
        return True

    def _typed(self, field: Field, text: str) -> LineEdit:
        """The content after text was typed or pasted; it replaces that of a fresh field."""
        if self._is_fresh:
            return LineEdit().insert(text)
        return field.edit.insert(text)

    def _fill(self, key: str, edit: LineEdit) -> None:
        self.shell.message = ("", "info")
        self._is_fresh = False
        self._change(self.form.set(key, edit))

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        if self.current is not None and self.current.key != MORE:
            self._fill(self.current.key, self._typed(self.current, event.text))

    def _step_value(self, by: int) -> None:
        if self.current is not None:
            self._is_fresh = True
            self._change(self.form.step_choice(self.current, by))

    do_value_next = partialmethod(_step_value, 1)
    do_value_previous = partialmethod(_step_value, -1)

    def point_at(self, row: Hashable) -> None:
        super().point_at(row)
        self._is_fresh = True
        self._made = None

    def _move(self, by: int) -> None:
        """Move the cursor, from the last field to the first."""
        if ids := self.row_ids:
            self.point_at(ids[(ids.index(self.table.cursor) + by) % len(ids)])

    do_field_next = partialmethod(_move, 1)
    do_field_previous = partialmethod(_move, -1)

    def do_choose_gpus(self) -> None:
        if not self.form.fields:
            self.shell.say(self._blocked_by() or "", "warning")
            return
        request = GpuRequest(1)
        if self.plan is not None and self.plan.spec is not None:
            request = self.plan.spec.gpus

        def take(text: str) -> None:
            self._change(self.form.set(GPUS, LineEdit.at_end(text)))

        self.app.push_screen(PickGpusScreen(request.count, request.memory_bytes, request.uuids, take))

    def do_last_values(self) -> None:
        if self.form.entry is None or (run := self._newest_run(self.form.entry)) is None:
            self.shell.say("No run of this profile is in the list.")
        else:
            self._change(self.form.fill(Prefill(run.profile, launched_params(run))))

    def do_preview(self) -> None:
        plan = self.plan
        if plan is None:
            self.shell.say("Still checking; a moment.")
            return
        lines = (*plan.problems, *plan.description, "", *(clean(check.line) for check in plan.checks))
        self.app.push_screen(SheetScreen("What would be started", lines))

    def do_ask_target(self) -> None:
        form = self.form
        name = self.form.target
        workspace = self.shell.workspace
        if name is None:
            self.shell.say(f"Write the name of a target into the field {TARGET!r} first.")
            return

        def show(lines: list[str]) -> None:
            self.shell.message = ("", "info")
            self.app.push_screen(SheetScreen(f"{name} now", lines))

        self.shell.say(f"Asking {name}…")
        self.in_thread(lambda: list(plans.survey_lines(form, workspace)), show)

    def do_cancel(self) -> None:
        self.app.pop_screen()

    def do_start(self) -> None:
        """Launch the run, after the checks if they are still running."""
        plan = self.plan
        if (blocked_by := self._blocked_by()) is not None:
            self.shell.say(blocked_by, "warning")
            return
        if plan is None or plan.spec is None or not self.is_settled:
            self._is_eager = True
            self.shell.say("Launching as soon as the checks are through…")
            return
        spec = plan.spec
        workspace = self.shell.workspace
        name = self.form.text(NAME).strip() or None
        self.app.pop_screen()
        if isinstance(self.app.screen, ActionScreen) and self.app.screen.SCOPE == "profiles":
            self.app.pop_screen()
        title = f"Launch {name or spec.name}"
        self.shell.ask_in_order([(title, lambda: commands.launch(workspace, spec, name))])


# --- the list of profiles


class ProfileRow(FileRow, frozen=True):
    """One profile of the list. ``missing`` names what it lacks on this machine."""

    description: str
    gpus: str
    used_at: float | None
    missing: str

    @property
    def searched(self) -> str:
        return self.description


def profile_rows(workspace: Workspace, cwd: Path, snapshot: Snapshot) -> list[ProfileRow]:
    """All profiles of ``cwd``, named ones and the files of runs. Those of ``cwd`` come first, then the last used, then
    what can start here."""
    used: dict[str, float] = {}
    for run in (row.run for row in snapshot.runs):
        key = plans.profile_path(run) or run.profile
        used[key] = max(used.get(key, 0.0), run.created_at)
    entries = plans.read_profiles(workspace, cwd, [path for path in used if path.startswith("/")])
    rows = [_row(entry, used, len(snapshot.gpus)) for entry in entries]
    return sorted(rows, key=lambda row: (row.path.parent != cwd, -(row.used_at or 0.0), bool(row.missing)))


def _row(entry: ProfileEntry, used: Mapping[str, float], gpu_count: int) -> ProfileRow:
    keys = (str(entry.path.resolve()), entry.name)
    at = max((used[key] for key in keys if key in used), default=None)
    profile = entry.profile
    name = clean(entry.name)
    if profile is None:
        problem = (str(entry.error).splitlines() or ["cannot be read"])[0]
        return ProfileRow(entry.path, name, description="", gpus="", used_at=at, missing=clean(f"broken: {problem}"))
    selection = profile.form.gpus
    count = selection.count or len(selection.devices)
    gpus = count_of(count, "GPU") if count else "CPU"
    if selection.is_all:
        count = 1
        gpus = "all GPUs"
    description = clean(profile.description)
    if count > gpu_count:
        missing = f"needs {gpus}, this machine has {gpu_count}"
        return ProfileRow(entry.path, name, description, gpus=gpus, used_at=at, missing=missing)
    return ProfileRow(entry.path, name, description, gpus=gpus, used_at=at, missing=_missing_data(profile))


def _missing_data(profile: Profile) -> str:
    from gputui.profiles.preflight import missing_data
    from gputui.profiles.resolve import ResolveError, working_directory

    try:
        workdir = working_directory(profile, os.environ)
    except ResolveError:
        return ""
    params = {name: parameter.default for name, parameter in profile.parameters.items()}
    missing = missing_data(params, workdir, os.environ)
    return ", ".join(f"needs {name} ({clean(str(params[name]))})" for name, _ in missing)


class ChooseProfileScreen(FileListScreen[ProfileRow]):
    """The list of profiles; the chosen one opens the launch form."""

    SCOPE: ClassVar[Scope] = "profiles"
    TITLE = "Launch"
    WHAT = "profile"
    VERB = "choose"
    PATH_NOTE = "or type a command; tab completes"
    SUFFIXES = (".yaml", ".yml", ".py")

    def __init__(self, near: str | None = None) -> None:
        """``near``: the path of the profile that the cursor starts on."""
        super().__init__()
        self._near: Path | None = None
        if near is not None:
            self._near = Path(near).resolve()

    def on_mount(self) -> None:
        def take(rows: Sequence[ProfileRow]) -> None:
            near = (row.path for row in rows if row.path.resolve() == self._near)
            self.rows_read(rows, next(near, None))

        read = partial(profile_rows, self.shell.workspace, Path.cwd(), self.snapshot)
        self.in_thread(read, take)

    def row_of_file(self, path: Path) -> ProfileRow:
        return ProfileRow(path, clean(shown_path(path)), description="", gpus="", used_at=None, missing="")

    def columns(self) -> Sequence[Column[ProfileRow]]:
        now = self.snapshot.at

        def state(row: ProfileRow, width: int = 0) -> list[Span]:
            if row.missing:
                return [(row.missing, "warn")]
            if row.used_at is None:
                return [("", "dim")]
            return [(f"used {ago(now - row.used_at)}", "dim")]

        # No wider than needed, so that the descriptions get the rest; paths are cut.
        names = max((len(row.name) for row in self.matches if "/" not in row.name), default=12)
        states = max((len(text) for row in self.matches for text, _ in state(row)), default=0)
        most = self.app.size.width // 4

        def about(row: ProfileRow, width: int) -> list[Span]:
            return [(clip_words(row.description, width), "text")]

        return (
            Column("PROFILE", max(18, min(names, most)), name_cell),
            Column("", 12, about, importance=1, grow=1),
            Column("GPUS", 8, lambda row, _: [(row.gpus, "text")]),
            Column("STATUS", max(9, min(states, most)), state),
        )

    def foot(self, width: int, height: int) -> list[Line]:
        if (row := self.current) is None:
            return []
        about = ". ".join(filter(None, (row.description.rstrip("."), row.missing)))
        lines = [rule(row.name, width), *paragraph((" ", "text"), about, "dim", width)]
        return fill_height(lines, width, 3)

    @property
    def matches(self) -> Sequence[ProfileRow]:
        if self._command:
            return ()
        if self.chosen_path is not None or not self.edit.text:
            return super().matches
        scripts = [file for file in self._files_at(Path(self.edit.text).absolute()) if file.suffix == ".py"]
        return [*super().matches, *map(self.row_of_file, scripts)]

    @property
    def _command(self) -> tuple[str, ...]:
        """The words of a typed command; none for text that filters."""
        return typed.command_of(self.edit.text, Path.cwd(), is_filter=bool(super().matches))

    def empty_words(self) -> str:
        if self._command:
            return "↵ launches this command."
        return super().empty_words()

    def do_choose(self) -> None:
        if command := self._command:
            self.app.push_screen(LaunchScreen(Prefill(command[0], command=command)))
        elif self.rows is not None and self.chosen is None and self.edit.text:
            self.shell.say(f"There is no profile, file or program {clean(self.edit.text)}.", "warning")
        else:
            super().do_choose()

    def do_complete(self) -> None:
        text, names = typed.complete(self.edit.text, Path.cwd())
        self._type(LineEdit.at_end(text))
        if len(names) != 1:
            self.shell.say(clean("  ".join(names)) or "No file begins so.")
        self.changed()

    def take(self, path: Path) -> None:
        prefill = Prefill(path.stem, path=str(path))
        if path.suffix == ".py":
            prefill = Prefill(path.name, command=(shown_path(path),))
        self.app.push_screen(LaunchScreen(prefill))
