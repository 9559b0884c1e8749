"""`gputui sweep`."""

from __future__ import annotations

import click

from gputui.ui.cli.context import EXIT_USAGE, Session, json_option, print_json


@click.command("sweep")
@click.argument("profile")
@click.option("--set", "values", multiple=True, required=True, metavar="KEY=A,B,C", help="Values of a parameter.")
@click.option("--metric", default="loss", show_default=True, help="What is compared.")
@click.option("--maximize", is_flag=True, help="Larger is better.")
@click.option("--over", type=click.Choice(("best", "last")), default="best", help="Which value counts.")
@click.option("--parallel", type=click.IntRange(1, 256), help="Trials at a time (else as many as fit).")
@click.option("--on", "target", metavar="TARGET", help="Where its trials run (gputui target list); else here.")
@click.option("--name", help="What the study is called (else the profile's name and -sweep).")
@click.option("--wait", is_flag=True, help="Wait until it ends.")
@click.option("--dry-run", is_flag=True, help="Only show its points and what they are expected to take.")
@json_option
@click.pass_obj
def command(
    session: Session,
    profile: str,
    values: tuple[str, ...],
    metric: str,
    maximize: bool,
    over: str,
    parallel: int | None,
    target: str | None,
    name: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a profile once for each combination of some values: a study over a grid.

    Its file is kept with the study (gputui study show --source).
    """
    from gputui.profiles.params import ParameterError, split_assignments
    from gputui.studies.loading import source_of, sweep_study
    from gputui.studies.spec import Objective
    from gputui.ui.cli import launch_spec
    from gputui.ui.cli.study import print_plan
    from gputui.ui.cli.study_launch import launch, plan_json

    chosen = launch_spec.load_profile(session, profile)
    try:
        given = {key: text.split(",") for key, text in split_assignments(values).items()}
        objective = Objective(metric, "maximize" if maximize else "minimize", "last" if over == "last" else "best")
        there = None if target is None else launch_spec.target_of(session, chosen, target)
        spec = sweep_study(chosen, given, objective=objective, name=name, parallel=parallel, target=there)
    except ParameterError as error:
        launch_spec.refuse(list(error.problems), EXIT_USAGE)
    if dry_run:
        plan = plan_json(session, spec)
        print_json(plan) if as_json else print_plan(plan)
        return
    raise SystemExit(launch(session, spec, chosen, source_of(spec, chosen.path.resolve()), wait=wait, as_json=as_json))
