"""`gputui agent`: start, stop and status, and what an administrator needs beside them."""

from __future__ import annotations

import sqlite3

import click

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.runs.agent_process import AgentUnreachableError, read_identity, stop_agent
from gputui.store import json_shapes
from gputui.store.agent import RecordStatus, Retention, read_agent, record_status
from gputui.ui.cli import orphans, prometheus, service
from gputui.ui.cli.context import EXIT_UNREACHABLE, Session, fail, json_option, print_json, say


@click.group("agent")
def command() -> None:
    """The process in the background that records and supervises."""


command.add_command(service.command)
command.add_command(orphans.command)
command.add_command(prometheus.command)


@command.command("start")
@click.pass_obj
def start(session: Session) -> None:
    """Start the agent if none runs."""
    session.need_agent()
    identity = read_identity(session.workspace)
    say(f"agent running, pid {identity.process.pid}" if identity else "agent started")


@command.command("stop")
@click.pass_obj
def stop(session: Session) -> None:
    """End the agent; runs continue.

    The next agent takes them over. Nothing starts one until a command or a screen does.
    """
    try:
        if session.workspace.state.is_dir():
            session.workspace.agent_stopped.touch(PRIVATE_FILE_MODE)
        ended = stop_agent(session.workspace)
    except AgentUnreachableError as error:
        fail(str(error), EXIT_UNREACHABLE)
    except OSError as error:
        fail(f"cannot write in {session.workspace.state}: {error.strerror}; the agent still runs", EXIT_UNREACHABLE)
    say("agent stopped; runs continue" if ended else "no agent runs")


@command.command("status")
@json_option
@click.pass_obj
def status(session: Session, as_json: bool) -> None:
    """Show the agent that runs here."""
    identity = read_identity(session.workspace)
    connection = session.reader_or_none()
    view = None if connection is None else read_agent(connection)
    home = str(session.workspace.state.parent)
    record = _record(session, connection)
    if as_json:
        shape = json_shapes.agent_shape(view, running=identity is not None, home=home)
        print_json({**shape, "record": record.to_json()})
        return
    if identity is None:
        say(f"no agent runs for {home}")
    else:
        doing = "recording" if identity.recording else "in the background"
        say(f"agent {identity.version} {doing}, pid {identity.process.pid}, home {home}")
    for line in record.lines():
        say(line)


def _record(session: Session, connection: sqlite3.Connection | None) -> RecordStatus:
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.home_files import load_retention

    try:
        retention, problem = load_retention(session.workspace.record), None
    except ProfileError as error:
        retention, problem = Retention(), str(error.problems[0])
    return record_status(connection, retention, problem)
