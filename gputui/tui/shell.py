"""What pages and dialogs see of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from gputui.config import Workspace
from gputui.store.runs import Run
from gputui.tui.actions.keymap import Keys
from gputui.tui.data.snapshot import Moment, Snapshot
from gputui.tui.settings import Settings

if TYPE_CHECKING:
    from textual.message import Message
    from textual.screen import Screen


class Shell(Protocol):
    """The app as pages and dialogs use it; `gputui.tui.app` composes it of parts."""

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
        """Whether only ASCII is written."""
        ...

    @property
    def line_words(self) -> str | None:
        """How far the terminal is behind; None while it keeps up."""
        ...

    @property
    def is_holding_paint(self) -> bool:
        """Whether the page will be painted soon, with whatever changes until then."""
        ...

    def one_paint(self) -> AbstractContextManager[None]:
        """However often a paint is asked for inside, the page is painted once, at the end."""
        ...

    def perform(self, name: str) -> None:
        """Do what an action of the table says on the page that is seen, or say why it is not possible now."""
        ...

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence above the footer until the next key."""
        ...

    def post_message(self, message: Message) -> bool:
        """Queue a message for the app; from any thread."""
        ...

    def tell(self, text: str, kind: str = "info") -> None:
        """The same as `say` from another thread."""
        ...

    def work(self, do: Callable[[], str], failure: str) -> None:
        """Do something that touches the disk in a thread, and show the sentence that it returns, or that it failed."""
        ...

    def change(self, **changes: Any) -> None:
        """Change settings: they take effect now and are kept for the next start."""
        ...

    def copy(self, what: str, text: str) -> None:
        """Put a text into the person's clipboard."""
        ...

    # --- commands for the agent

    def ask(self, words: str, verb: str, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command for the agent; its answer is shown."""
        ...

    def ask_by(self, words: str, write: Callable[[], int]) -> None:
        """The same with another way to write it; ``write`` returns the command's id."""
        ...

    def confirmed(self, title: str, text: str, do: Callable[[], object]) -> None:
        """Ask a person first, and do it when they are sure."""
        ...

    # --- the moment and the pages

    def look_back(self, moment: Moment) -> None:
        """Show a past moment; one that is still to come is the present."""
        ...

    def type_moment(self) -> None:
        """Ask for the moment to show."""
        ...

    def request_data(self, page: Screen[Any]) -> None:
        """Ask the feed for what this page needs, if it is the one that is seen."""
        ...

    def open_run(self, run_id: str) -> None:
        """Go to the page of a run."""
        ...

    def open_study(self, study_id: str) -> None:
        """Go to the page of studies, at this one."""
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
        """Put the overview's cursor on a run as soon as it is there."""
        ...
