"""The interface of the app for pages and dialogs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from textual import events

from gputui.core.config import Workspace
from gputui.store.runs import Run
from gputui.ui.tui.actions.keymap import Keys
from gputui.ui.tui.data.snapshot import Moment, Snapshot
from gputui.ui.tui.settings import Settings

if TYPE_CHECKING:
    from textual.message import Message
    from textual.screen import Screen


class Shell(Protocol):
    """The app as pages and dialogs use it; implemented by `gputui.ui.tui.app`."""

    workspace: Workspace
    snapshot: Snapshot
    keys: Keys
    is_readonly: bool
    is_demo: bool
    host_name: str
    agent_notice: str | None
    message: tuple[str, str]
    """The sentence above the footer and its kind: info, warning or error."""

    @property
    def settings(self) -> Settings: ...

    @property
    def is_ascii(self) -> bool:
        """Whether only ASCII characters are shown."""
        ...

    @property
    def line_words(self) -> str | None:
        """The lag of the terminal in words; None while it keeps up."""
        ...

    @property
    def is_holding_paint(self) -> bool:
        """Whether paints are postponed to the end of `one_paint`."""
        ...

    def one_paint(self) -> AbstractContextManager[None]:
        """Postpone all paints inside the block, and paint the visible page once at its end."""
        ...

    def perform(self, name: str) -> None:
        """Carry out an action on the visible page, or say why it is not possible now."""
        ...

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence above the footer until the next key."""
        ...

    def post_message(self, message: Message) -> bool:
        """Queue a message for the app. Thread-safe."""
        ...

    def tell(self, text: str, kind: str = "info") -> None:
        """`say` from another thread."""
        ...

    def work(self, do: Callable[[], str], failure: str) -> None:
        """Do disk work in a thread, and show the sentence that it returns, or ``failure`` with the OSError."""
        ...

    def change(self, **changes: Any) -> None:
        """Change settings, now and for the next start."""
        ...

    def copy(self, what: str, text: str) -> None:
        """Put a text into the person's clipboard."""
        ...

    # --- commands for the agent

    def ask(self, words: str, verb: str, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command for the agent, and show its answer."""
        ...

    def ask_by(self, words: str, write: Callable[[], int]) -> None:
        """`ask` with ``write``, which writes the command and returns its id."""
        ...

    def confirmed(self, title: str, text: str, do: Callable[[], object]) -> None:
        """Call ``do`` if the person confirms it."""
        ...

    # --- the moment and the pages

    def look_back(self, moment: Moment) -> None:
        """Show a past moment; a future one shows the present."""
        ...

    def type_moment(self) -> None:
        """Ask the person for the moment to show."""
        ...

    def request_data(self, page: Screen[Any]) -> None:
        """Request the data of ``page`` from the feed, if it is the visible page."""
        ...

    def open_run(self, run_id: str) -> None:
        """Go to the page of a run."""
        ...

    def open_study(self, study_id: str) -> None:
        """Go to the page of studies, and show this one."""
        ...

    def open_gpu(self, uuid: str) -> None:
        """Go to the page of a GPU."""
        ...

    def compare(self, run: Run | None, marked: Sequence[str] = ()) -> None:
        """Go to the comparison of the marked runs, or of ``run`` with the newest of its profile."""
        ...

    def launch_from(self, profile: str) -> None:
        """Open the launch form with a profile."""
        ...

    def select_run(self, run_id: str) -> None:
        """Move the overview's cursor to a run as soon as it appears."""
        ...


def passed_to_top(screen: Screen[Any], event: events.Key) -> bool:
    """Pass a key on to the top screen, if an earlier key has opened or closed a screen since; returns whether it was.
    So keys typed ahead reach the screen they were meant for."""
    stack = screen.app.screen_stack
    if not stack or stack[-1] is screen:
        return False
    stack[-1]._forward_event(events.Key(event.key, event.character))
    return True
