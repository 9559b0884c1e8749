"""`gputui agent prometheus`."""

from __future__ import annotations

from importlib.resources import files

import click


@click.group("prometheus")
def command() -> None:
    """Print what Prometheus and Grafana need.

    gputui --record --prometheus 127.0.0.1:9464 is what they read.
    """


@command.command("rules")
def rules() -> None:
    """Print alert rules, for rule_files: in prometheus.yml."""
    _print("rules.yaml")


@command.command("dashboard")
def dashboard() -> None:
    """Print a dashboard to import into Grafana."""
    _print("dashboard.json")


def _print(name: str) -> None:
    text = files("gputui.reports.prometheus").joinpath(name).read_text("utf-8")
    click.echo(text, nl=False)
