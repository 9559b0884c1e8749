"""Commands about the queue: pause and resume it, and move a run in it."""

from __future__ import annotations

from gputui.agent.commands.answers import RefusedError, answer
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.runs.repository import transaction
from gputui.store import queue
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


def pause(supervisor: Supervisor, command: PendingCommand) -> None:
    """Start no new runs until the queue is resumed; running and recovering runs continue."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is None:
            queue.set_pause(connection, actor=command.actor, now=now)
            add_event(
                connection, "queue_paused", f"the queue was paused by {command.actor}", now=now, severity="warning"
            )
        answer(supervisor, command, {"paused": True})
    supervisor.needs_schedule = True


def resume(supervisor: Supervisor, command: PendingCommand) -> None:
    """Resume the queue."""
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        if queue.pause(connection) is not None:
            queue.clear_pause(connection)
            add_event(connection, "queue_resumed", f"the queue was resumed by {command.actor}", now=now)
        answer(supervisor, command, {"paused": False})
    supervisor.needs_schedule = True


def move(supervisor: Supervisor, command: PendingCommand) -> None:
    """Set a run's ``priority``, or move it to the ``first`` or ``last`` place of the queue, or one place ``up`` or
    ``down``, which may raise the priority of other runs."""
    waiting = queued_runs(supervisor.context.connection)
    target = next((run for run in waiting if run.run_id == command.run_id), None)
    if target is None:
        wanted_run = None if command.run_id is None else get_run(supervisor.context.connection, command.run_id)
        if wanted_run is None:
            raise RefusedError(f"no run {command.run_id!r}; gputui queue lists those that wait")
        if wanted_run.state is not RunState.RECOVERING:
            raise RefusedError(
                f"{wanted_run.run_id} is {wanted_run.state}; only a run that waits has a place in the queue"
            )
        target = wanted_run
    priorities = new_priorities(supervisor, target, waiting, command.args)
    now = supervisor.context.now()
    with transaction(supervisor.context.connection) as connection:
        for run_id, new in priorities.items():
            queue.set_priority(connection, run_id, new)
            add_event(connection, "priority_set", f"{command.actor} gave it priority {new}", now=now, run_id=run_id)
        priority = priorities.get(target.run_id, target.priority)
        position = next((e.position for e in queue.entries(connection) if e.run_id == target.run_id), None)
        result = {"id": target.run_id, "state": target.state, "priority": priority, "position": position}
        answer(supervisor, command, result)
    supervisor.needs_schedule = True


def new_priorities(supervisor: Supervisor, target: Run, waiting: list[Run], args: dict[str, object]) -> dict[str, int]:
    """The new priorities by run. Raises RefusedError."""
    by = {"up": -1, "down": 1}.get(str(args.get("place")))
    if by is None:
        return {target.run_id: new_priority(target, waiting, args)}
    if target.state is not RunState.QUEUED:
        raise RefusedError(f"{target.run_id} is {target.state}; it continues by itself and is not in the queue")
    return queue.moved(queue.entries(supervisor.context.connection), target.run_id, by)


def new_priority(target: Run, waiting: list[Run], args: dict[str, object]) -> int:
    """The new priority of ``target``. Raises RefusedError."""
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
