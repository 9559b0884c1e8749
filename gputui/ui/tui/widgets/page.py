"""The base of all pages: keys from the table of actions, notices, messages and a footer."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple, TypeVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.errors import NoWidget
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Line
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope, actions_in
from gputui.ui.tui.actions.key_lines import FooterKey, footer_action, footer_line, key_spans, message_lines, with_keys
from gputui.ui.tui.layout.columns import LEAST_SIZE, fit_line, is_too_small, wrap
from gputui.ui.tui.layout.lists import index_of
from gputui.ui.tui.layout.moments import time_at, time_line
from gputui.ui.tui.layout.strips import notice_lines, warning_lines
from gputui.ui.tui.shell import Shell, passed_to_top
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.snapshot import Interest, Moment, Snapshot
from gputui.ui.views.words import dated_clock

WHEEL_LINES = 3  # as terminals and browsers scroll

Result = TypeVar("Result")

NARROW = 100
"""Below this width the trail of pages has only the overview, or an ellipsis."""


class Copyable(NamedTuple):
    """Something to copy: what it is, as in "Copied …", and its text."""

    what: str
    text: str


class Choice(NamedTuple):
    """A choice of the palette.

    Attributes:
        title: what is listed, and searched.
        hint: what stands beside it.
        do: carries it out.
        why_not: a sentence if it is not possible now.
        name: a short name that it is found by, too; "" without one.
        kind: one of `KINDS`.
        after: what must be typed before it is offered.
        also: other words that it is found by; "" without any.
    """

    title: str
    hint: str
    do: Callable[[], object]
    why_not: str | None = None
    name: str = ""
    kind: str = "other"
    after: str = ""
    also: str = ""


class ActionScreen(Screen[None]):
    """A page whose keys come from the table of actions. A method ``do_<name>`` of it, of one of its ``parts``, or of
    the app carries out an action."""

    BLANK = True
    SCOPE: ClassVar[Scope]
    parts: tuple[object, ...] = ()
    """Objects that carry out actions beside the page."""
    body: Sequence[Widget] = ()
    """The widgets between the head with its notices and the footer with its message."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.notice = Pane(id="notice")
        self.message = Pane(id="message")
        self.footer = Pane(id="footer")
        self._opened_with: tuple[int, Size] | None = None
        """The snapshot and the size that it was drawn for before it was shown."""

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, *self.body, self.message, self.footer)

    @property
    def shell(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that is shown."""
        return self.shell.snapshot

    @property
    def crumb(self) -> str:
        """The page's name in the trail of pages; harmless text."""
        return self.SCOPE.replace("_", " ")

    def with_trail(self, draw: Callable[[int], Line], width: int) -> Line:
        """A page's head behind the trail of pages that escape leads back through: ``gputui › vit-b16-1 ›``."""
        stack = self.app.screen_stack
        below = stack[: index_of(stack, self)]
        crumbs = [screen.crumb for screen in below if isinstance(screen, ActionScreen)]
        if width < NARROW and len(crumbs) > 1:
            crumbs = ["…"]
        trail = "".join(f" {crumb} ›" for crumb in crumbs)
        return [(trail, "dim"), *draw(width - cell_width(trail))]

    @property
    def run_in_question(self) -> Run | None:
        """The run that actions apply to."""
        return None

    @property
    def marked_runs(self) -> tuple[Run, ...]:
        """The runs that actions apply to instead (`BULK_ACTIONS`)."""
        return ()

    @property
    def study_in_question(self) -> str | None:
        """The id of the study that actions apply to."""
        return None

    @property
    def gpu_in_question(self) -> GpuView | None:
        """The GPU that actions apply to."""
        return None

    def context(self) -> Context:
        """The context that decides which actions are possible."""
        app = self.shell
        past = self.snapshot.past
        past_at = None
        if past is not None:
            past_at = dated_clock(self.snapshot.at, past.now)
        return Context(
            scope=self.SCOPE,
            run=self.run_in_question,
            has_studies=any(row.run.study_id for row in self.snapshot.runs) or bool(self.snapshot.studies),
            is_readonly=app.is_readonly,
            past_at=past_at,
            is_ascii=app.is_ascii,
            connection_lag=app.lag_words,
            keys=app.keys.on(self.SCOPE),
        )

    @property
    def key_words(self) -> Mapping[str, str]:
        """The printed keys of the page's actions by their names."""
        printed = Context(self.SCOPE, is_ascii=self.shell.is_ascii, keys=self.shell.keys.on(self.SCOPE))
        return {action.name: action.key_word(printed) for action in actions_in(self.SCOPE)}

    def interest(self) -> Interest | None:
        """The page's request to the feed; None if the page needs nothing."""
        return Interest()

    def copyable(self) -> Sequence[Copyable]:
        """Texts to copy, the focused one first."""
        if (run := self.run_in_question) is None:
            return []
        return [Copyable("the run's id", run.run_id)]

    def choices(self) -> Sequence[Choice]:
        """The palette's choices on this page beside its actions."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Warnings about the subject of this page, shown below its head."""
        return ()

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Handle the wheel over a pane: the action of the down key, or if negative of the up key."""
        key = "down" if by > 0 else "up"
        name = next(action.name for action in actions_in(self.SCOPE) if key in action.keys)
        with self.shell.one_paint():
            for _ in range(abs(by)):
                self.shell.perform(name)

    @on(events.MouseScrollDown)
    @on(events.MouseScrollUp)
    def wheel_turned(self, event: events.MouseEvent) -> None:
        """Scroll what is below the pointer, which Textual resolves only for clicks."""
        event.stop()
        pane = None
        with suppress(NoWidget):
            pane = self.get_widget_at(*event.screen_offset)[0]
        if isinstance(event, events.MouseScrollDown):
            self.wheel(pane, WHEEL_LINES)
        else:
            self.wheel(pane, -WHEEL_LINES)

    @on(events.Click, "#footer")
    def footer_clicked(self, event: events.Click) -> None:
        """Perform the clicked action."""
        event.stop()
        name = footer_action(self.context(), self.app.size.width, event.x)
        if name is not None and not self.overriding_keys:
            self.shell.perform(name)

    @on(events.Click, "#notice")
    def time_line_clicked(self, event: events.Click) -> None:
        """Show the clicked moment of the time line."""
        past = self.snapshot.past
        if past is None or event.y != 0:
            return
        at = time_at(past, self.app.size.width, event.x)
        if at is not None:
            event.stop()
            self.shell.look_back(Moment(at, direction=-1))

    # --- a line being typed on the page

    @property
    def line(self) -> LineEdit | None:
        """The line being typed, for example a filter; while there is one, keys are text."""
        return None

    def type_line(self, line: LineEdit | None, text: str) -> None:
        """Take the changed line; None ends the typing, with no ``text`` if it was cancelled."""
        raise NotImplementedError

    def take_key(self, event: events.Key) -> bool:
        """Handle a key before it becomes text or an action; False to leave it to them."""
        return False

    def on_key(self, event: events.Key) -> None:
        """Handle keys one after another. Textual's bindings act later, so that text in one burst, as
        over a slow line, would overtake the key before it."""
        event.stop()
        if passed_to_top(self, event) or self.take_key(event):
            return
        line = self.line
        if line is not None and event.key == "enter":
            self._take_line(None, line.text)
        elif line is not None and event.key == "escape":
            self._take_line(None, "")
        elif line is not None and (typed := line.typed(event.key, event.character)) is not None:
            self._take_line(typed, typed.text)
        elif (name := self.shell.keys.action(self.SCOPE, event.key)) is not None:
            self.shell.perform(name)
        elif line is None:
            self.shell.say(self.shell.keys.elsewhere(self.SCOPE, event.key), "refusal")

    def on_paste(self, event: events.Paste) -> None:
        if (line := self.line) is not None:
            event.stop()
            pasted = line.insert(event.text)
            self._take_line(pasted, pasted.text)

    def _take_line(self, line: LineEdit | None, text: str) -> None:
        self.type_line(line, text)
        self.changed()

    # --- actions of every page

    def do_back(self) -> None:
        self.app.pop_screen()

    def do_copy(self) -> None:
        if texts := self.copyable():
            self.shell.copy(texts[0].what, texts[0].text)
        else:
            self.shell.say("There is nothing to copy here.", "warning")

    def in_thread(self, work: Callable[[], Result], take: Callable[[Result], object]) -> None:
        """Do something slow without delaying the screen.

        Args:
            work: is done in a thread.
            take: gets the result, unless the page was closed meanwhile.
        """
        app = self.app

        def deliver(result: Result) -> None:
            if self in app.screen_stack:
                take(result)

        def run() -> None:
            app.call_later(deliver, work())

        threading.Thread(target=run, name="work", daemon=True).start()

    def on_resize(self) -> None:
        self.changed()

    def on_screen_resume(self) -> None:
        opened_with = self._opened_with
        self._opened_with = None
        if opened_with == (id(self.snapshot), self.app.size):
            self.shell.request_data(self)
        else:
            self.changed()
        # What was closed is a thousand objects in cycles. By then the page is painted; later there would be many.
        self.set_timer(0.2, gc.collect)

    def changed(self) -> None:
        """Draw the page, and request the data that it needs from now on."""
        self.paint()
        if not self.shell.is_holding_paint:
            self.shell.request_data(self)

    def paint(self) -> None:
        """Draw the newest snapshot, unless `Shell.one_paint` will."""
        width, height = self.app.size
        if not width or not height or self.shell.is_holding_paint:
            return
        if not self.is_mounted:
            self._opened_with = (id(self.snapshot), self.app.size)
        with self.app.batch_update():
            if is_too_small(width, height):
                for pane in self.query(Pane):
                    pane.clear()
                text = f"This terminal has {width}×{height} cells; gputui needs {LEAST_SIZE[0]}×{LEAST_SIZE[1]}."
                self.notice.show([fit_line([(part, "warn")], width) for part in wrap(text, width)][:height])
                return
            try:
                self.draw(width, height)
            except Exception as error:
                for pane in self.query(Pane):
                    pane.clear()
                self.notice.show([self.shell.failure_line(type(self).__name__, error)])
                self.footer.draw(lambda: [footer_line(self.context(), width)], height=1)

    def draw(self, width: int, height: int) -> None:
        """Give every pane its lines for a terminal of this size."""
        raise NotImplementedError

    def draw_frame(self, width: int) -> int:
        """Draw notices, message and footer; returns their number of lines."""
        past = self.snapshot.past
        notices: list[Line] = []
        if past is not None:
            notices.append(time_line(past, self.snapshot.at, width))
        notices += notice_lines(self.snapshot, self.shell.agent_notice, width)
        notices += [line for text in self.warnings() for line in warning_lines(text, width)]
        self.notice.show(notices)
        text, kind = self.shell.message
        messages: Sequence[Line] = []
        if text:
            messages = message_lines(with_keys(text, self.context()), kind, width)
        self.message.show(messages)
        self.draw_footer()
        return len(notices) + len(messages) + 1

    @property
    def overriding_keys(self) -> Sequence[FooterKey]:
        """The keys of the dialog or the line being typed that has the keyboard instead of the page."""
        keys: Sequence[FooterKey] = getattr(self.app.screen, "keys", ())
        if self.line is not None:
            return (("enter", "keep"), ("escape", "give up"))
        return keys

    def draw_footer(self) -> None:
        """Draw the keys of what has the keyboard."""
        width = self.app.size.width
        if self.overriding_keys:
            line = fit_line([(" ", "text"), *key_spans(self.overriding_keys, is_ascii=self.shell.is_ascii)], width)
        else:
            line = footer_line(self.context(), width)
        self.footer.show([line], height=1)
