"""`gputui target list` and `check`."""

from __future__ import annotations

import click

from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Group, Session, print_json, print_table, say


@click.group("target", cls=Group)
def command() -> None:
    """Other machines and clusters where runs may run."""


@command.verb("list", changes=False, has_json=True)
def list_(session: Session, as_json: bool) -> None:
    """List the targets of targets.yaml."""
    from gputui.profiles.targets import load_targets

    session.need_own_settings()
    targets = load_targets(session.workspace.targets)
    if as_json:
        print_json(list(targets.values()))
    elif not targets:
        say(f"no targets in {session.workspace.targets}; gputui help targets shows how to write one")
    else:
        rows = []
        for name, target in targets.items():
            settings = [f"{key}={value}" for key, value in target.items() if key not in ("name", "kind")]
            rows.append((name, target["kind"], "  ".join(settings)))
        print_table(("TARGET", "KIND", ""), rows)
        say(f"from {session.workspace.targets}")


@command.verb("check", changes=True, has_json=True)
@click.argument("name", shell_complete=completers.targets)
def check(session: Session, name: str, as_json: bool) -> None:
    """See whether a target can be used.

    Is it reached, has it the right partition and account, free GPUs, and a clock that agrees? Over
    SSH it also goes through a launch of nothing there.
    """
    from gputui.profiles.preflight import survey_target
    from gputui.profiles.targets import find_target

    target = find_target(name, {}, session.workspace)
    results = []
    for result in survey_target(target):
        results.append(result)
        if not as_json:
            say(result.line)
    if as_json:
        print_json([result.to_json() for result in results])
    if any(result.status == "fail" for result in results):
        raise SystemExit(Exit.REFUSED)
