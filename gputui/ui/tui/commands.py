"""Commands for the agent: actions write them as rows, and their answers are shown.

Threads do the writing, because a locked database may take seconds.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.core.units import bytes_text, count_of
from gputui.runs.identity import actor, asker
from gputui.store.commands import (
    ANSWER_SECONDS,
    AgentVerb,
    CommandAnswer,
    NotWithdrawnError,
    patience_seconds,
    ring,
    submit,
    wait_for_answer,
)
from gputui.store.database import StoreError, open_commander
from gputui.store.rows import json_mapping
from gputui.store.runs import Run
from gputui.ui.tui.actions.marked import BULK_ACTIONS
from gputui.ui.tui.shell import Shell
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.views.run_words import runs_question
from gputui.ui.views.words import RUN_SIGNS, STUDY_SIGNS

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec
    from gputui.studies.spec import StudySpec

POLL_SECONDS = 0.1  # a person sees no delay


class Commands(Shell):
    """Commands about the run, study or GPU in question, and their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: dict[int, str] = {}
        """The titles of commands by their ids; the agent drops them when the screen ends."""
        self._refusals: list[str] = []
        """What was refused of the commands that were asked together."""
        self._newest_answer: tuple[str, CommandAnswer] | None = None
        """The message about the newest answer, and that answer."""
        self._newest_write = threading.Event()  # set when it is over, written or not
        self._newest_write.set()

    @property
    def page(self) -> ActionScreen:
        """The visible page, perhaps behind a dialog."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, ActionScreen))

    @property
    def chosen_run(self) -> Run:
        """The run that a checked action applies to."""
        run = self.page.run_in_question
        assert run is not None
        return run

    def ask(self, title: str, verb: AgentVerb, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command in a thread, after those asked before; its answer is shown.

        Args:
            title: the command in a few words: ``Stop vit-1``.
            verb: its name in the store.
            run_id: the run that it is about.
            args: its arguments.
        """
        self.ask_in_order([(title, self._writer(verb, run_id, args))], patience_seconds(verb))

    def _writer(self, verb: AgentVerb, run_id: str | None, args: Mapping[str, Any]) -> Callable[[], int]:
        """A function that writes a command and returns its id."""
        from gputui.runs.spec import SpecError
        from gputui.runs.submission import ticket_to_renew

        workspace = self.workspace

        def write() -> int:
            request = {**args, "asker": asker()}
            if verb in ("resume", "restart") and run_id is not None:
                # The agent says what is wrong with a specification that cannot be read.
                with suppress(SpecError):
                    request |= ticket_to_renew(workspace, run_id)
            with closing(open_commander(workspace.database)) as store:
                command_id = submit(store, verb, run_id, request, actor(), now=time.time())
            ring(workspace.doorbell)
            return command_id

        return write

    def ask_in_order(
        self, questions: Sequence[tuple[str, Callable[[], int]]], patience: float = ANSWER_SECONDS
    ) -> None:
        """`ask` several commands; without an answer in time they are withdrawn.

        Args:
            questions: the title of each command, and a function that writes it and returns its id.
            patience: how many seconds to wait for an answer.
        """
        earlier = self._newest_write
        written = threading.Event()
        self._newest_write = written
        self._refusals = []

        def work() -> None:
            earlier.wait()
            ids = []
            try:
                for title, write in questions:
                    ids.append(write())
                    self.call_later(self._await_answer, title, ids[-1])
            except Exception as error:
                # Without a report, the command would be lost silently.
                self.tell(f"Cannot ask the agent: {error or type(error).__name__}", "error")
            finally:
                written.set()
            for command_id in ids:
                withdraw_late(self.workspace, command_id, patience)

        threading.Thread(target=work, name="asking", daemon=True).start()

    def _await_answer(self, title: str, command_id: int) -> None:
        self.unanswered[command_id] = title
        self.feed.watch(command_id)
        self.say(f"{title}…")

    def take_answer(self, answer: CommandAnswer) -> None:
        """Show the agent's answer, and open what it made."""
        title = self.unanswered.pop(answer.command_id, "")
        if answer.state == "refused":
            reason = answer.reason or ""
            subject = title.rpartition(" ")[2]
            text = f"Refused: {reason}" if subject in reason else f"{title}: refused. {reason}"
            self._refusals.append(text)
            if len(self._refusals) > 1:
                text += f" {len(self._refusals) - 1} more refused."
            self.say(text, "error")
            return
        result = answer.result or {}
        if not self._refusals:
            self._newest_answer = (answer_text(title, result), answer)
            self.say(self._newest_answer[0])
        if answer.verb == "run":
            self.select_run(str(result.get("id", "")))
        if answer.verb == "study" and self.page.SCOPE == "studies":
            self.open_study(str(result.get("id", "")))

    def drop_outdated_answer(self) -> None:
        """Remove the message that a run or study moved, once the snapshot shows a later move of it."""
        if self._newest_answer is None or self.message != (self._newest_answer[0], "info"):
            return
        answer = self._newest_answer[1]
        result = answer.result or {}
        answered_at = answer.answered_at
        if answered_at is None or self.snapshot.at < answered_at:
            return
        subject = str(result.get("id"))
        answered_state = result.get("state")
        states = {**{row.run.run_id: str(row.run.state) for row in self.snapshot.runs}, **self.snapshot.study_states}
        if answered_state is not None and states.get(subject, answered_state) != answered_state:
            self.message = ("", "info")

    def _ask_first(
        self,
        title: str,
        effect: str,
        verb: AgentVerb,
        run_id: str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """`ask` once the person confirms it; ``effect`` says what it does."""
        self.confirm(f"{title}?", effect, lambda: self.ask(title, verb, run_id, args or {}))

    # --- a study

    def do_study_pause(self) -> None:
        study_id = self.page.study_in_question
        if self.page.context().study == "paused":
            self.ask(f"Resume {study_id}", "study_resume", run_id=None, args={"study": study_id})
        else:
            self.ask(f"Pause {study_id}", "study_pause", run_id=None, args={"study": study_id})

    def do_study_stop(self) -> None:
        study_id = self.page.study_in_question
        effect = "Its running trials are stopped, too; it can be resumed."
        self._ask_first(f"Stop {study_id}", effect, "study_stop", args={"study": study_id})

    # --- the marked runs

    def ask_marked(self, name: str, args: Mapping[str, Any] | None = None) -> None:
        """Act on all marked runs that can be acted on, once the person confirms it.

        Args:
            name: the action, one of `BULK_ACTIONS`.
            args: the arguments of the agent's command; None for those of the action.
        """
        bulk = BULK_ACTIONS[name]
        marked = self.page.marked_runs
        runs = bulk.runs_of(marked)
        if args is None:
            args = bulk.args
        questions = [(f"{bulk.word} {run.run_id}", self._writer(bulk.verb, run.run_id, args)) for run in runs]
        self.confirm(
            f"{bulk.word} {count_of(len(runs), 'run')}?",
            runs_question(runs, bulk.refused(marked), bulk.effect, with_sizes=name == "remove"),
            lambda: self.ask_in_order(questions, patience_seconds(bulk.verb)),
        )

    # --- a run

    def do_stop(self) -> None:
        if (run := self.page.run_in_question) is None:
            self.do_study_stop()
            return
        if run.state in ("queued", "recovering"):
            effect = "It leaves the queue."
            if run.state == "recovering":
                effect = "It waits for its next attempt, which will not start."
        elif json_mapping(run.spec_json).get("checkpoints") is not None:
            effect = "It gets the time to write a checkpoint, then its processes end."
        else:
            effect = "Its processes end. It can only begin again: how it loads a checkpoint is not known."
        self._ask_first(f"Stop {run.run_id}", effect, "stop", run.run_id, {"now": False})

    def do_restart(self) -> None:
        run = self.chosen_run
        effect = "It begins at step 0, with the parameters of its launch."
        if not run.state.is_over:
            effect += " Its processes are stopped first."
        self._ask_first(f"Restart {run.run_id}", effect, "restart", run.run_id)

    def do_resume(self) -> None:
        run = self.chosen_run
        title = f"Resume {run.run_id}"
        args = {"set": dict[str, object]()}
        if run.state == "succeeded":
            effect = "It is complete; it goes on from its newest checkpoint."
        elif run.study_id is not None:
            kind = "pruned trial" if run.trial_state == "pruned" else "trial"
            state = self.snapshot.study_states.get(run.study_id)
            study = "a study that is over" if state is None or state.is_over else "a study"
            effect = f"It is a {kind} of {study}; what it reaches now does not count there."
        else:
            self.ask(title, "resume", run.run_id, args)
            return
        self._ask_first(title, effect, "resume", run.run_id, args)

    def do_remove(self) -> None:
        run = self.chosen_run
        effect = "Its metrics, logs and checkpoints are removed, too"
        if run.size_bytes is not None:
            effect += f": {bytes_text(run.size_bytes)}"
        effect += ". This cannot be undone."
        self._ask_first(f"Remove {run.run_id}", effect, "rm", run.run_id)

    # --- the queue, and GPUs in quarantine

    def do_queue_toggle(self) -> None:
        if self.page.study_in_question is not None:
            self.do_study_pause()
        elif self.snapshot.machine.queue_pause is not None:
            self.ask("Open the queue", "queue_resume", run_id=None, args={})
        else:
            effect = "No run starts until you open it again; active runs continue and recover as usual."
            self._ask_first("Pause the queue", effect, "queue_pause")

    def _move_in_queue(self, word: str, place: str) -> None:
        self.ask(f"{word} in the queue", "queue_move", self.chosen_run.run_id, {"place": place})

    do_queue_up = partialmethod(_move_in_queue, "Earlier", "up")
    do_queue_down = partialmethod(_move_in_queue, "Later", "down")

    def do_clear_gpu(self) -> None:
        quarantined = self.snapshot.machine.quarantined
        gpu = self.page.gpu_in_question
        if gpu is None or gpu.uuid not in quarantined:
            gpu = next(gpu for gpu in self.snapshot.gpus if gpu.uuid in quarantined)
        effect = f"Runs can have it again. It was set aside: {clean(quarantined[gpu.uuid].words)}"
        self._ask_first(f"Clear GPU {gpu.index}", effect, "clear_gpu", args={"uuid": gpu.uuid})


def answer_text(title: str, result: Mapping[str, Any]) -> str:
    """The agent's answer to the command of this title as a sentence: ``vit-1 running``."""
    subject = clean(str(result.get("id", "")))
    sign = (RUN_SIGNS | STUDY_SIGNS).get(str(result.get("state")))
    if "text" in result:
        return clean(str(result["text"]))
    if "paused" in result:
        if result["paused"]:
            return "No run starts; active runs continue."
        return "The queue is open."
    if result.get("position") is not None:
        return f"{subject} is #{result['position']} in the queue"
    if sign is None:
        return f"{title}: done"
    if sign.word == "stopping":
        return f"{subject}: stopping"
    return f"{subject} {sign.word}"


def launch(workspace: Workspace, spec: RunSpec, name: str | None) -> int:
    """Hand a run to the agent; returns the id. Raises StoreError, sqlite3.Error, OSError."""
    from gputui.runs.submission import submit_run

    with closing(open_commander(workspace.database)) as store:
        return submit_run(workspace, store, spec, name=name, actor=actor(), now=time.time())


def start_study(workspace: Workspace, base: RunSpec, spec: StudySpec, source: str) -> int:
    """`launch` of a study: the specification of its runs, its own, and the text of its file."""
    from gputui.runs.launch_shell import capture
    from gputui.runs.submission import ticket_for

    private = replace(base, shell=capture())
    with closing(open_commander(workspace.database)) as store, ticket_for(workspace, private) as ticket:
        arguments = {"spec": spec.to_json(), "source": source, **ticket}
        return submit(store, "study", run_id=None, args=arguments, actor=actor(), now=time.time())


def withdraw_late(workspace: Workspace, command_id: int, seconds: float) -> None:
    """Wait for the answer to a command, and withdraw it if none comes."""
    # If the store is gone or read only, no agent can carry it out.
    with (
        suppress(StoreError, sqlite3.Error, NotWithdrawnError),
        closing(open_commander(workspace.database)) as store,
    ):
        wait_for_answer(store, command_id, seconds, pause=lambda _: time.sleep(POLL_SECONDS))
