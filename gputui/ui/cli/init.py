"""`gputui init`."""

from __future__ import annotations

from pathlib import Path

import click

from gputui.core.yaml_forms.problems import ProfileError, shown_path
from gputui.metrics.learning import LearnedLines
from gputui.metrics.log_trial import try_log
from gputui.profiles.init.draft import draft
from gputui.profiles.init.presets import PRESETS
from gputui.profiles.init.script_survey import SurveyError
from gputui.profiles.init.typed_command import DraftError
from gputui.profiles.profile_file import read_profile
from gputui.ui.cli.context import Exit, fail, say, verb
from gputui.ui.cli.log_trial import read_log


@verb("init", changes=True, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT | -- COMMAND…")
@click.option("--preset", type=click.Choice([*PRESETS]), help="What the script is built on, where that cannot be seen.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Where to write it.")
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An old log of it, to learn its metrics from.",
)
def command(words: tuple[str, ...], preset: str | None, out: Path | None, log: Path | None) -> None:
    """Write a profile, with comments, for a script or a command that trains already. The script is read, not run."""
    here = Path.cwd()
    if out is not None and (here / out).parent.resolve() != here.resolve():
        fail("--out names a file in this folder: relative paths of the profile begin where it lies", Exit.USAGE)
    # Without asking the driver.
    gpus = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    trial = None
    if log is not None:
        trial = try_log(read_log(log), LearnedLines())
    try:
        profile = draft(words, here, preset=PRESETS.get(preset or ""), gpus=gpus, trial=trial)
    except (DraftError, SurveyError) as error:
        fail(str(error), Exit.USAGE)
    path = here / (out or f"{profile.name}.yaml")
    try:
        read_profile(profile.text, path)
    except ProfileError as error:
        fail(
            f"no valid profile could be drafted: {error.problems[0]}; gputui help profiles says how to write one",
            Exit.USAGE,
        )
    try:
        _write_new(path, profile.text)
    except FileExistsError:
        fail(f"{shown_path(path)} is there already; choose another with --out, or remove it", Exit.REFUSED)
    except OSError as error:
        fail(f"{shown_path(path)} cannot be written: {error.strerror}", Exit.REFUSED)
    for mark, lines in (("✓", profile.seen), ("▲", profile.open_points)):
        for line in lines:
            say(f"{mark} {line}")
    named = f"./{shown_path(path)}"
    say(f"wrote {named}; look through it, then: gputui check {named}, gputui run {named}")


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, and leave none if that fails. Raises OSError."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
