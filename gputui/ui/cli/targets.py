"""`gputui targets`."""

from __future__ import annotations

import click

from gputui.ui.cli import launch_spec
from gputui.ui.cli.check import result_line
from gputui.ui.cli.context import (
    EXIT_REFUSED,
    EXIT_USAGE,
    JsonGroup,
    Session,
    json_option,
    print_json,
    print_table,
    say,
)


@click.group("targets", cls=JsonGroup, invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Where else runs may run: the targets of targets.yaml."""
    if context.invoked_subcommand is not None:
        return
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.targets import load_targets

    session: Session = context.obj
    try:
        found = load_targets(session.workspace.targets)
    except ProfileError as error:
        launch_spec.refuse(str(error).splitlines(), EXIT_USAGE)
    if as_json:
        print_json(list(found.values()))
    elif not found:
        say(f"no targets in {session.workspace.targets}; docs/targets.md shows how to write one")
    else:
        rows = [
            (
                name,
                one["kind"],
                "  ".join(f"{key}={value}" for key, value in one.items() if key not in ("name", "kind")),
            )
            for name, one in found.items()
        ]
        print_table(("TARGET", "KIND", ""), rows)
        say(f"from {session.workspace.targets}")


@command.command("check")
@click.argument("name")
@json_option
@click.pass_obj
def check(session: Session, name: str, as_json: bool) -> None:
    """See whether a target can be used: reached, right partition and account, free GPUs, its clock."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.targets import TargetNotFoundError, find_target, survey

    try:
        target = find_target(name, {}, session.workspace)
    except (TargetNotFoundError, ProfileError) as error:
        launch_spec.refuse(str(error).splitlines(), EXIT_USAGE)
    results = []
    for result in survey(target):
        results.append(result)
        if not as_json:
            say(result_line(result))
    if as_json:
        print_json([result.to_json() for result in results])
    if any(result.status == "fail" for result in results):
        raise SystemExit(EXIT_REFUSED)
