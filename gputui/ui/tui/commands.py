"""Commands for the agent: actions write them as rows, and their answers are shown.

Threads do the writing, because a locked database may take seconds.
"""

from __future__ import annotations

import getpass
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from textual.message import Message

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.runs.identity import asker
from gputui.store.commands import (
    ANSWER_SECONDS,
    CommandAnswer,
    NotWithdrawnError,
    patience_seconds,
    wait_for_answer,
)
from gputui.store.commands import submit as insert_command
from gputui.store.database import StoreError, StoreMissingError, is_locked, open_commander
from gputui.store.rows import json_mapping
from gputui.store.runs import Run
from gputui.ui.tui.layout.words import RUN_SIGNS, run_sign
from gputui.ui.tui.shell import Shell
from gputui.ui.tui.widgets.page import ActionScreen

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec
    from gputui.studies.spec import StudySpec


@dataclass
class Asked(Message):
    """A command was written for the agent, or could not be."""

    words: str
    command_id: int | None
    problem: str | None


@dataclass
class Answered(Message):
    """The agent answered a command."""

    answer: CommandAnswer


class Commands:
    """Writes commands about the run or GPU of ``page``, and shows their answers."""

    def __init__(self, shell: Shell, page: Callable[[], ActionScreen], watch: Callable[[int], object]) -> None:
        self._shell = shell
        self._page = page
        self._watch = watch
        self._asked: dict[int, str] = {}
        self._newest_write = threading.Event()  # set when it is over, written or not
        self._newest_write.set()

    @property
    def unanswered(self) -> list[str]:
        """Commands without an answer, in words; the agent drops them when the screen ends."""
        return list(self._asked.values())

    def _run(self) -> Run:
        run = self._page().run_in_question
        assert run is not None  # checked by the action's `why_not`
        return run

    def ask(self, words: str, verb: str, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command for the agent in a thread, after those asked before; its answer is shown."""
        seconds = patience_seconds(verb)
        self.ask_by(words, lambda: submit(self._shell.workspace, verb, run_id, args), patience=seconds)

    def ask_by(self, words: str, write: Callable[[], int], *, patience: float = ANSWER_SECONDS) -> None:
        """`ask` with ``write``, which writes the command and returns its id. A command without an answer after
        ``patience`` seconds is withdrawn, so that it is not carried out long after the person repeated it."""
        earlier, written = self._newest_write, threading.Event()
        self._newest_write = written

        def work() -> None:
            earlier.wait()
            try:
                try:
                    command_id = write()
                finally:
                    written.set()
                self._shell.post_message(Asked(words, command_id, None))
                withdraw_late(self._shell.workspace, command_id, patience)
            except (StoreError, sqlite3.Error, OSError) as error:
                self._shell.post_message(Asked(words, None, str(error)))
            except Exception as error:
                # Without a report, the command would be lost silently.
                self._shell.post_message(Asked(words, None, f"{type(error).__name__}: {error}"))

        threading.Thread(target=work, name="asking", daemon=True).start()

    def asked(self, message: Asked) -> None:
        """Watch for the answer to a written command."""
        if message.command_id is None:
            self._shell.say(f"Cannot ask the agent: {message.problem}", "error")
            return
        self._asked[message.command_id] = message.words
        self._watch(message.command_id)
        self._shell.say(f"{message.words}…")

    def answered(self, answer: CommandAnswer) -> None:
        """Show the answer to a command."""
        words = self._asked.pop(answer.command_id, "")
        if answer.state == "refused":
            self._shell.say(f"{words}: refused. {answer.reason or ''}", "error")
            return
        result = answer.result or {}
        self._shell.say(answer_text(words, result))
        if answer.verb == "run":
            self._shell.select_run(str(result.get("id", "")))
        if answer.verb == "study" and self._page().SCOPE == "studies":
            self._shell.open_study(str(result.get("id", "")))

    # --- a study

    def _ask_study(self, words: str, verb: str) -> None:
        study_id = self._page().study_in_question
        self.ask(f"{words} {study_id}", verb, None, {"study": study_id})

    def do_study_pause(self) -> None:
        if self._page().context().study == "paused":
            self._ask_study("Resume", "study_resume")
        else:
            self._ask_study("Pause", "study_pause")

    def do_study_stop(self) -> None:
        study_id = self._page().study_in_question
        text = f"Stop {study_id}? Its running trials are stopped, too; gputui study resume continues it."
        self._shell.confirmed("Stop the study", text, lambda: self._ask_study("Stop", "study_stop"))

    # --- a run

    def do_stop(self) -> None:
        if (run := self._page().run_in_question) is None:
            self.do_study_stop()
            return
        if run.state in ("queued", "recovering"):
            effect = f"It is {run_sign(run.state).word} and has no process now; it will not start again."
        elif json_mapping(run.spec_json).get("checkpoints") is not None:
            effect = "It gets the time to write a checkpoint, then its processes end."
        else:
            effect = "It saves no checkpoints: its steps are lost, then its processes end."
        title = f"Stop {run.run_id}"
        ask = partial(self.ask, title, "stop", run.run_id, {"now": False})
        self._shell.confirmed("Stop", f"{title}? {effect}", ask)

    def do_restart(self) -> None:
        run = self._run()
        now = "" if run.state.is_over else " Its processes are stopped first."
        text = f"Restart {run.run_id} from step 0, with the parameters of its launch?{now}"
        self._shell.confirmed("Restart", text, lambda: self.ask(f"Restart {run.run_id}", "restart", run.run_id, {}))

    def do_resume(self) -> None:
        run = self._run()
        resume = partial(self.ask, f"Resume {run.run_id}", "resume", run.run_id, {"set": {}})
        is_over = all(study.study_id != run.study_id for study in self._shell.snapshot.studies)
        if run.state == "succeeded":
            why = f"{run.run_id} is complete. Resume it from its newest checkpoint as it is?"
        elif run.study_id is not None:
            kind = "a pruned trial" if run.trial_state == "pruned" else "a trial"
            over = " that is over" if is_over else ""
            why = f"{run.run_id} is {kind} of a study{over}: its result will not count there. Resume it?"
        else:
            resume()
            return
        self._shell.confirmed("Resume", why, resume)

    def do_remove(self) -> None:
        run = self._run()
        text = f"Remove {run.run_id} with its metrics, logs and checkpoints? This cannot be undone."
        self._shell.confirmed("Remove", text, lambda: self.ask(f"Remove {run.run_id}", "rm", run.run_id, {}))

    # --- the queue, and GPUs in quarantine

    def do_queue_toggle(self) -> None:
        if self._page().study_in_question is not None:
            self.do_study_pause()
            return
        if self._shell.snapshot.machine.queue_pause is not None:
            self.ask("Open the queue", "queue_resume", None, {})
            return
        text = "Pause the queue? No run starts until you open it again; active runs continue and recover as usual."
        self._shell.confirmed("Pause the queue", text, lambda: self.ask("Pause the queue", "queue_pause", None, {}))

    def _move_in_queue(self, word: str, place: str) -> None:
        self.ask(f"{word} in the queue", "queue_move", self._run().run_id, {"place": place})

    do_queue_up = partialmethod(_move_in_queue, "Earlier", "up")
    do_queue_down = partialmethod(_move_in_queue, "Later", "down")

    def do_clear_gpu(self) -> None:
        held = self._shell.snapshot.machine.quarantined
        chosen = self._page().gpu_in_question
        if chosen is None or chosen.uuid not in held:
            chosen = next((gpu for gpu in self._shell.snapshot.gpus if gpu.uuid in held), None)
        if chosen is None:
            return
        failed = held[chosen.uuid]
        where = f" under {failed.run_id}" if failed.run_id else ""
        text = f"Let runs have GPU {chosen.index} again? It failed{where}: {clean(failed.reason)}"
        words, uuid = f"Clear GPU {chosen.index}", chosen.uuid
        self._shell.confirmed(words, text, lambda: self.ask(words, "clear_gpu", None, {"uuid": uuid}))


def answer_text(words: str, result: Mapping[str, Any]) -> str:
    """An answer as a sentence. ``words`` name the command, ``result`` is the agent's answer."""
    if "text" in result:
        return clean(str(result["text"]))
    if "paused" in result:
        return f"{words}: " + ("no run starts; active runs continue" if result["paused"] else "the queue is open")
    if "position" in result and result["position"] is not None:
        return f"{words}: {clean(str(result.get('id', '')))} is #{result['position']} in the queue"
    if "id" not in result:
        return f"{words}: done"
    state = str(result.get("state"))
    if state == "queued":
        # It may be starting by now.
        return f"{words}: {clean(str(result['id']))} starts as soon as its GPUs are free"
    return f"{words}: {clean(str(result['id']))} is {run_sign(state).word if state in RUN_SIGNS else clean(state)}"


STORE_SECONDS = 30.0
"""How long a command waits for a store that another program locks, or that the starting agent has yet to create."""

_LOOK_SECONDS = 0.1


def actor() -> str:
    """The user's name for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def submit(workspace: Workspace, verb: str, run_id: str | None, args: Mapping[str, Any]) -> int:
    """Write a command; returns its id. Raises StoreError, sqlite3.Error or OSError."""

    def write(connection: sqlite3.Connection) -> int:
        words = {**args, "asker": asker()}
        return insert_command(connection, verb, run_id, words, actor(), now=time.time(), doorbell=workspace.doorbell)

    return _written(workspace, write)


def withdraw_late(workspace: Workspace, command_id: int, seconds: float) -> None:
    """Wait for the answer to a command, and withdraw it if none comes."""
    # If the store is gone or read only, no agent can carry it out.
    with suppress(StoreError, sqlite3.Error, NotWithdrawnError), closing(open_commander(workspace.database)) as store:
        wait_for_answer(store, command_id, seconds, pause=lambda _: time.sleep(_LOOK_SECONDS))


def launch(workspace: Workspace, spec: RunSpec, name: str | None) -> int:
    """Hand a run to the agent; returns the command's id. Raises as `submit` does."""
    from gputui.runs.submission import submit_run

    return _written(
        workspace,
        lambda connection: submit_run(workspace, connection, spec, name=name, actor=actor(), now=time.time()),
    )


def start_study(workspace: Workspace, base: RunSpec, spec: StudySpec, source: str) -> int:
    """Hand a study to the agent; ``base`` specifies its runs, ``source`` is the text of its file. Returns the command's
    id. Raises as `submit` does."""
    from gputui.runs.launch_shell import capture
    from gputui.runs.submission import submit_ticket

    shelled = replace(base, shell=capture())
    words = {"spec": spec.to_json(), "source": source}
    return _written(
        workspace,
        lambda connection: submit_ticket(workspace, connection, "study", shelled, words, actor(), now=time.time()),
    )


def _written(workspace: Workspace, write: Callable[[sqlite3.Connection], int]) -> int:
    """Call ``write``, waiting up to `STORE_SECONDS` for the store."""
    deadline = time.monotonic() + STORE_SECONDS
    while True:
        try:
            with closing(open_commander(workspace.database)) as connection:
                return write(connection)
        except (StoreError, sqlite3.OperationalError) as error:
            may_pass = isinstance(error, StoreMissingError) or is_locked(error)
            if not may_pass or time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_SECONDS)
