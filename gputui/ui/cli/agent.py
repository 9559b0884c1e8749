"""`gputui agent`: start, stop and status, and what an administrator needs beside them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib.resources import files
from typing import Any

import click

from gputui.core import units
from gputui.core.config import PRIVATE_FILE_MODE
from gputui.runs import orphans, repository
from gputui.runs.agent_process import AgentUnreachableError, read_identity, stop_agent
from gputui.runs.identity import ProcessIdentity
from gputui.store import json_shapes
from gputui.store.agent import RecordStatus, Retention, read_agent, record_status
from gputui.store.hardware import read_gpus
from gputui.ui.cli import service
from gputui.ui.cli.context import Exit, Group, Session, exit_on, print_json, print_table, say


@click.group("agent", cls=Group)
def command() -> None:
    """The process in the background that records and supervises."""


command.add_command(service.command)


@command.verb("start", changes=True)
def start(session: Session) -> None:
    """Start the agent if none runs."""
    session.need_agent()
    identity = read_identity(session.workspace)
    if identity is None:
        say("agent started")
    else:
        say(f"agent running, pid {identity.process.pid}")


@command.verb("stop", changes=True)
def stop(session: Session) -> None:
    """End the agent; runs continue.

    The next agent takes them over. Nothing starts one until a command or a screen does.
    """
    before = f"cannot write in {session.workspace.state}: "
    after = "; the agent still runs"
    with (
        exit_on(AgentUnreachableError, code=Exit.UNREACHABLE),
        exit_on(OSError, code=Exit.UNREACHABLE, before=before, after=after),
    ):
        if session.workspace.state.is_dir():
            session.workspace.agent_stopped.touch(PRIVATE_FILE_MODE)
        has_ended = stop_agent(session.workspace)
    if has_ended:
        say("agent stopped; runs continue")
    else:
        say("no agent runs")


@command.verb("status", changes=False, has_json=True)
def status(session: Session, as_json: bool) -> None:
    """Show the agent that runs here."""
    identity = read_identity(session.workspace)
    connection = session.reader_or_empty()
    view = read_agent(connection)
    workspace = session.workspace
    record = _record(session, connection)
    if as_json:
        shape = json_shapes.agent_shape(view, running=identity is not None, home=str(workspace.place))
        print_json({**shape, "record": record.to_json()})
        return
    if identity is None:
        say(f"no agent runs for {workspace.label}")
    else:
        doing = "recording" if identity.recording else "in the background"
        say(f"agent {identity.version} {doing}, pid {identity.process.pid}, {workspace.label}")
    for line in record.lines():
        say(line)


def _record(session: Session, connection: sqlite3.Connection) -> RecordStatus:
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.home_files import load_retention

    try:
        retention = load_retention(session.workspace.record)
        problem = None
    except ProfileError as error:
        retention = Retention()
        problem = str(error.problems[0])
    return record_status(connection, retention, problem)


ProcessKey = tuple[int, int | None]
"""A process for as long as it lives: PID and start ticks."""


@command.verb("orphans", changes=lambda options: options["kill"], has_json=True)
@click.option("--kill", is_flag=True, help="End them: SIGTERM, and SIGKILL after 5 s.")
def orphans_(session: Session, kill: bool, as_json: bool) -> None:
    """List processes that have outlived their run; --kill ends them.

    Only processes of this user that carry the mark of a run of this home are listed, and none other is ever killed.
    """
    processes = orphans.without_ancestors(orphans.find_marked(session.workspace.runs), os.getpid())
    if processes and (kill or not session.workspace.database.exists()):
        # The agent reads back what a lost database does not know: without it, live runs might look like strangers.
        session.need_agent()
    memory_bytes: Mapping[ProcessKey, int] = {}
    if processes:
        with closing(session.reader()) as connection:
            processes = orphans.orphans(processes, repository.run_statuses(connection))
            memory_bytes = _gpu_memory(connection)
    survivors: set[ProcessIdentity] = set()
    if kill and processes:
        survivors = set(orphans.end([process.identity for process in processes]))
        ended = [{**_shape(process), "killed": process.identity not in survivors} for process in processes]
        session.ask("orphans_ended", None, processes=ended)
    shapes: list[dict[str, Any]] = []
    for process in processes:
        identity = process.identity
        size_bytes = memory_bytes.get((identity.pid, identity.start_ticks))
        is_killed = identity not in survivors if kill else None
        shapes.append({**_shape(process), "gpu_memory_bytes": size_bytes, "killed": is_killed})
    if as_json:
        print_json(shapes)
    else:
        _print_orphans(shapes, survivors, kill=kill)
    if survivors:
        raise SystemExit(Exit.REFUSED)


def _gpu_memory(connection: sqlite3.Connection) -> Mapping[ProcessKey, int]:
    """The bytes that each process holds on all GPUs."""
    memory_bytes: Counter[ProcessKey] = Counter()
    for gpu in read_gpus(connection, time.time()):
        for process in gpu.processes or ():
            memory_bytes[process.pid, process.start_ticks] += process.memory_bytes or 0
    return memory_bytes


def _print_orphans(shapes: Sequence[Mapping[str, Any]], survivors: Iterable[ProcessIdentity], *, kill: bool) -> None:
    if not shapes:
        say("no orphans: every process of a run belongs to an attempt that is alive")
        return
    print_table(("PID", "RUN", "ATTEMPT", "GPU MEMORY", "", "COMMAND"), [_cells(shape) for shape in shapes])
    if not kill:
        say("gputui agent orphans --kill ends them")
    pids = ", ".join(str(identity.pid) for identity in survivors)
    if pids:
        say(f"not even SIGKILL ends {pids}; a hung driver is likely, and a reboot needed")


def _shape(orphan: orphans.MarkedProcess) -> dict[str, Any]:
    return {"pid": orphan.identity.pid, "run_id": orphan.run_id, "attempt": orphan.attempt, "command": orphan.command}


def _cells(shape: Mapping[str, Any]) -> tuple[str, ...]:
    size = "–"
    if shape["gpu_memory_bytes"] is not None:
        size = units.bytes_text(shape["gpu_memory_bytes"])
    return (
        str(shape["pid"]),
        shape["run_id"],
        str(shape["attempt"] or "–"),
        size,
        {None: "", True: "ended", False: "cannot be killed"}[shape["killed"]],
        shape["command"],
    )


@click.group("prometheus", cls=Group)
def prometheus() -> None:
    """Print what Prometheus and Grafana need.

    gputui --record --prometheus 127.0.0.1:9464 is what they read.
    """


command.add_command(prometheus)


@prometheus.verb("rules", changes=False)
def rules(_session: Session) -> None:
    """Print alert rules, for rule_files: in prometheus.yml."""
    click.echo(files("gputui.reports.prometheus").joinpath("rules.yaml").read_text("utf-8"), nl=False)


@prometheus.verb("dashboard", changes=False)
def dashboard(_session: Session) -> None:
    """Print a dashboard to import into Grafana."""
    click.echo(files("gputui.reports.prometheus").joinpath("dashboard.json").read_text("utf-8"), nl=False)
