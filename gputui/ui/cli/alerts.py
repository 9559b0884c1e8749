"""`gputui alerts`: what is wrong now, and what was."""

from __future__ import annotations

import sqlite3
import time

import click

from gputui.core import units
from gputui.runs.agent_process import read_identity
from gputui.store import alerts
from gputui.store.agent import read_agent
from gputui.store.alerts import AlertView
from gputui.store.json_shapes import alert_shape
from gputui.ui.cli import completers
from gputui.ui.cli.context import (
    Exit,
    Session,
    fail,
    listing,
    print_json,
    print_result,
    print_table,
    say,
)

MOST = 1000  # cleared alerts of months; the janitor removes older ones


@listing("alerts")
@click.option("--all", "with_cleared", is_flag=True, help="Those that are over, too.")
@click.option("--run", metavar="RUN", shell_complete=completers.runs, help="Those of one run, those that are over too.")
def command(session: Session, with_cleared: bool, run: str | None, as_json: bool) -> None:
    """List what is wrong now, the severest first."""
    connection = session.reader_or_empty()
    now = time.time()
    if run is not None:
        views = alerts.of_run(connection, session.find_run(connection, run).run_id)[::-1]
    else:
        views = alerts.lasting(connection)
        if with_cleared:
            views += alerts.cleared(connection, MOST)
    if as_json:
        print_json([alert_shape(alert, now) for alert in views])
        return
    if views:
        rows = []
        for alert in views:
            since = units.ago(max(0.0, now - alert.raised_at))
            rows.append((str(alert.alert_id), alert.severity, since, state_words(alert, now), alert.sentence))
        print_table(("", "SEVERITY", "SINCE", "STATE", "ALERT"), rows)
    elif with_cleared or run is not None:
        say("no alert")
    else:
        say("no active alerts")
    for line in _remarks(session, connection, views, now):
        say(line)


def _remarks(session: Session, connection: sqlite3.Connection, views: list[AlertView], now: float) -> list[str]:
    """Remedies, rules that are silenced everywhere, and the age of the list if no agent runs."""
    lines = list(dict.fromkeys(f"{alert.rule}: {alert.remedy}" for alert in views if alert.lasts))
    for (rule, _, subject), (end_at, actor) in sorted(alerts.silences(connection, now).items()):
        if subject == alerts.ANY_SUBJECT:
            lines.append(f"{rule} is silenced everywhere by {actor} for {units.duration(end_at - now)}")
    agent = read_agent(connection)
    if agent is not None and read_identity(session.workspace) is None:
        ago = units.duration(max(0.0, now - (agent.ended_at or agent.heartbeat_at)))
        lines.append(f"no agent runs: this is how it stood {ago} ago; gputui agent start looks again")
    return lines


def state_words(alert: AlertView, now: float) -> str:
    """The state of an alert in a few words."""
    if alert.cleared_at is not None:
        return f"resolved after {units.duration(alert.cleared_at - alert.raised_at)}"
    if alert.silenced_until is not None and alert.silenced_until > now:
        return f"silenced for {units.duration(alert.silenced_until - now)}"
    if alert.acknowledged_at is not None:
        return f"acked by {alert.acknowledged_by}"
    return "active"


@command.verb("ack", changes=True, has_json=True)
@click.argument("ids", nargs=-1, type=int, metavar="[ALERT]…")
@click.option("--all", "everything", is_flag=True, help="All active ones.")
def acknowledge(session: Session, ids: tuple[int, ...], everything: bool, as_json: bool) -> None:
    """Note that somebody has seen alerts, by their numbers."""
    if bool(ids) == everything:
        fail("name alerts by their numbers (gputui alerts lists them), or give --all", Exit.USAGE)
    answer = session.ask("alert_ack", None, ids=list(ids) or None)
    print_result(answer, str(answer.get("text") or "done"), as_json)


@command.verb("silence", changes=True, has_json=True)
@click.argument("what", metavar="ALERT|RULE")
@click.option("--for", "how_long", default="1h", show_default=True, metavar="TIME", help="30min, 2h, 1d; 0 ends it.")
def silence(session: Session, what: str, how_long: str, as_json: bool) -> None:
    """Silence an alert, or a rule everywhere, for a while.

    Nobody is notified meanwhile; recording continues.
    """
    from gputui.recovery.watch.overrides import parse_seconds

    seconds = 0.0 if how_long == "0" else parse_seconds(how_long)
    if seconds is None:
        fail(f"--for {how_long}: expected a time such as 30min, 2h or 1d, of at most 30 days", Exit.USAGE)
    target = {"id": int(what)} if what.isdecimal() else {"rule": what}
    answer = session.ask("alert_silence", None, seconds=seconds, **target)
    print_result(answer, str(answer.get("text") or "done"), as_json)


@command.verb("rules", changes=False, has_json=True)
@click.argument("profile", required=False, shell_complete=completers.profiles)
def rules(session: Session, profile: str | None, as_json: bool) -> None:
    """Show the rules with their thresholds, here or for a PROFILE."""
    from gputui.ui.cli.alert_rules import show_rules

    show_rules(session, profile, as_json)
