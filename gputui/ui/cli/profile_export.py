"""`gputui profile export`."""

from __future__ import annotations

from pathlib import Path

import click

from gputui.runs.manifests import MANIFESTS, ManifestError, write_manifest
from gputui.ui.cli.context import EXIT_REFUSED, EXIT_USAGE, Session, fail, say


@click.command("export")
@click.argument("profile")
@click.option("--to", "system", type=click.Choice(tuple(MANIFESTS)), required=True, help="System.")
@click.option("--out", type=click.Path(path_type=Path), help="File; else standard output.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A parameter.")
@click.option("--gpus", help="How many GPUs the job asks for.")
@click.option("--gpu-type", help="Their type, where the system wants it: H100.")
@click.option("--image", help="Container image of the job.")
@click.pass_obj
def command(
    session: Session,
    profile: str,
    system: str,
    out: Path | None,
    force: bool,
    changes: tuple[str, ...],
    gpus: str | None,
    gpu_type: str | None,
    image: str | None,
) -> None:
    """Write a profile as a job of another system. Such a job runs without gputui."""
    from gputui.ui.cli import launch_spec

    found = launch_spec.load_profile(session, profile)
    spec = launch_spec.resolve_spec(found, changes, gpus, None)
    try:
        text = write_manifest(system, spec, image=image, gpu_type=gpu_type)
    except ManifestError as error:
        fail(str(error), EXIT_USAGE)
    if out is None:
        for line in text.splitlines():
            say(line)
        return
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        fail(f"{out} is there already; --force replaces it", EXIT_REFUSED)
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}", EXIT_REFUSED)
    say(f"{out} written")
