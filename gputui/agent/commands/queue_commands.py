"""Answering the commands about the queue: pausing it, opening it, and changing a run's place in it."""

from __future__ import annotations

from gputui.agent.commands.refusal import RefusedError
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.runs.repository import transaction
from gputui.store import commands, queue
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Start nothing new until it is resumed; what runs, and what recovers, goes on."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is None:
            queue.set_pause(connection, actor=command.actor, now=now)
            add_event(
                connection, "queue_paused", f"the queue was paused by {command.actor}", now=now, severity="warning"
            )
        _answer(supervisor, command, {"paused": True})
    supervisor.needs_schedule = True


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Open the queue again."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is not None:
            queue.clear_pause(connection)
            add_event(connection, "queue_resumed", f"the queue was resumed by {command.actor}", now=now)
        _answer(supervisor, command, {"paused": False})
    supervisor.needs_schedule = True


def move(supervisor: Supervisor, command: PendingCommand) -> None:
    """Change a run's priority: to ``priority``, or to what puts it ``first`` or ``last`` among those that wait. Or move
    it one place ``up`` or ``down``, which may raise the priority of others."""
    waiting = queued_runs(supervisor.context.connection)
    target = next((run for run in waiting if run.run_id == command.run_id), None)
    if target is None:
        found = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
        if found is None:
            raise RefusedError(f"no run {command.run_id!r}; gputui queue lists those that wait")
        if found.state is not RunState.RECOVERING:
            raise RefusedError(f"{found.run_id} is {found.state}; only a run that waits has a place in the queue")
        target = found
    priorities = new_priorities(supervisor, target, waiting, command.args)
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        for run_id, given in priorities.items():
            queue.set_priority(connection, run_id, given)
            add_event(connection, "priority_set", f"{command.actor} gave it priority {given}", now=now, run_id=run_id)
        priority = priorities.get(target.run_id, target.priority)
        position = next((e.position for e in queue.entries(connection) if e.run_id == target.run_id), None)
        result = {"id": target.run_id, "state": target.state, "priority": priority, "position": position}
        _answer(supervisor, command, result)
    supervisor.needs_schedule = True


def new_priorities(supervisor: Supervisor, target: Run, waiting: list[Run], args: dict[str, object]) -> dict[str, int]:
    """The priorities that a move asks for, by run. Raises RefusedError."""
    by = {"up": -1, "down": 1}.get(str(args.get("place")))
    if by is None:
        return {target.run_id: new_priority(target, waiting, args)}
    if target.state is not RunState.QUEUED:
        raise RefusedError(f"{target.run_id} is {target.state}; it continues by itself and is not in the queue")
    return queue.moved(queue.entries(supervisor.context.connection), target.run_id, by)


def new_priority(target: Run, waiting: list[Run], args: dict[str, object]) -> int:
    """The priority that a move asks for. Raises RefusedError."""
    others = [run for run in waiting if run.run_id != target.run_id]
    place = args.get("place")
    if place == "first":
        return max([target.priority, *(run.priority + 1 for run in others)])
    if place == "last":
        return min([target.priority, *(run.priority - 1 for run in others)])
    priority = args.get("priority")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RefusedError("say where to: --first, --last or --priority N")
    return priority


def _answer(supervisor: Supervisor, command: PendingCommand, result: dict[str, object]) -> None:
    commands.give_answer(
        supervisor.context.connection, command.command_id, "done", now=supervisor.context.now(), result=result
    )
