"""`gputui agent prometheus`."""

from __future__ import annotations

import json

import click


@click.group("prometheus")
def command() -> None:
    """Print what Prometheus and Grafana need.

    gputui --record --prometheus 127.0.0.1:9464 is what they read.
    """


@command.command("rules")
def rules() -> None:
    """Print alert rules, for rule_files: in prometheus.yml."""
    from gputui.reports.prometheus.rules import rules_yaml

    click.echo(rules_yaml(), nl=False)


@command.command("dashboard")
def dashboard() -> None:
    """Print a dashboard to import into Grafana."""
    from gputui.reports.prometheus.dashboard import dashboard as make

    click.echo(json.dumps(make(), indent=2))
