"""`gputui profile list`, `save` and `export`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.core.files import write_new
from gputui.runs.manifests import MANIFESTS, write_manifest
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Group, Session, exit_on, fail, print_json, print_table, say

if TYPE_CHECKING:
    from gputui.profiles.profile_file import ProfileEntry


@click.group("profile", cls=Group)
def command() -> None:
    """Descriptions of what a run starts."""


@command.verb("list", changes=False, has_json=True)
def list_(session: Session, as_json: bool) -> None:
    """List the profiles here, in the home, and those that ship with gputui."""
    from gputui.profiles.profile_file import list_profiles

    entries = list_profiles(session.workspace, Path.cwd())
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "path": str(entry.path),
                    "source": entry.source,
                    "error": _first_mistake(entry),
                }
                for entry in entries
            ]
        )
        return
    rows = [(entry.name, entry.source, _remark(entry)) for entry in entries]
    print_table(("PROFILE", "FROM", ""), rows)


def _remark(entry: ProfileEntry) -> str:
    """The description of a profile, or its first mistake."""
    if entry.error is not None or entry.profile is None:
        return _first_mistake(entry) or ""
    return entry.profile.description


def _first_mistake(entry: ProfileEntry) -> str | None:
    if entry.error is None:
        return None
    return str(entry.error).splitlines()[0]


@command.verb("save", changes=True)
@click.argument("run", shell_complete=completers.runs)
@click.argument("name", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File; else that of the name in the home.")
def save(session: Session, run: str, name: str | None, out: Path | None) -> None:
    """Write the profile of a run, such as one without a profile, with what was learned of it as comments."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.profile_file import read_profile
    from gputui.profiles.saved_profile import SavedHistory, saved_profile
    from gputui.runs.spec import SpecError
    from gputui.runs.stored_spec import spec_of

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        history = SavedHistory.read(connection, view.run_id)
    with exit_on(SpecError, code=Exit.REFUSED, before=f"{view.run_id} has no specification that can be read: "):
        title = name or spec_of(view).name
        text = saved_profile(view, title, history)
    path = out or session.workspace.profiles / f"{title}.yaml"
    try:
        read_profile(text, path)
    except ProfileError as error:
        fail(f"no profile can be written of {view.run_id}: {error.problems[0]}", Exit.USAGE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, text)
    except FileExistsError:
        fail(f"{path} is there already; give another name: gputui profile save {view.run_id} NAME", Exit.REFUSED)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}", Exit.REFUSED)
    say(f"wrote {path}; look through it, then: gputui run {out or title}")


@command.verb("export", changes=False)
@click.argument("profile", shell_complete=completers.profiles)
@click.option("--to", "system", type=click.Choice(tuple(MANIFESTS)), required=True, help="System.")
@click.option("--out", type=click.Path(path_type=Path), help="File; else standard output.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A parameter.")
@click.option("--gpus", help="How many GPUs the job asks for.")
@click.option("--gpu-type", help="Their type, where the system wants it: H100.")
@click.option("--image", help="Container image of the job.")
def export(
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

    source = launch_spec.load_profile(session, profile)
    spec = launch_spec.resolve_spec(source, changes, gpus, situation=None, heeds_shell_gpus=False)
    text = write_manifest(system, spec, image=image, gpu_type=gpu_type)
    if out is None:
        for line in text.splitlines():
            say(line)
        return
    mode = "w" if force else "x"
    try:
        with out.open(mode, encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        fail(f"{out} is there already; --force replaces it", Exit.REFUSED)
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}", Exit.REFUSED)
    say(f"{out} written")
