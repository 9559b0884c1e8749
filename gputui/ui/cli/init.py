"""`gputui init`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from gputui.core.files import write_new
from gputui.core.yaml_forms.problems import ProfileError, nearest, shown_path
from gputui.metrics.learning import LearnedLines
from gputui.metrics.log_trial import try_log
from gputui.profiles.init.command_profile import meant_option
from gputui.profiles.init.draft import Draft, draft
from gputui.profiles.init.presets import PRESETS
from gputui.profiles.profile_file import read_profile
from gputui.ui.cli.command_verb import IS_COMMAND
from gputui.ui.cli.context import Exit, Session, Verb, fail, options_of, say, verb
from gputui.ui.cli.log_trial import read_log


def _refuse_options(ctx: click.Context, argv: Sequence[str], profile: Draft) -> None:
    """End the command for an option that is hardly the script's: one of gputui, or one that it does not declare."""
    line = shlex.join(argv)
    if argv[0].endswith(".py"):
        line = f"python {line}"
    remedy = f"for a command with its arguments: gputui init -- {line}"
    for flag in profile.undeclared:
        meant = meant_option(flag, options_of(ctx.command))
        if meant is not None:
            fail(f"{flag}: did you mean {meant}? Or {remedy}", Exit.USAGE)
        if not profile.options:
            continue
        refusal = f"{flag} is not an option of {profile.keys.get('script', argv[0])}"
        if flag in options_of(ctx.find_root().command):
            fail(f"{refusal}; gputui's own comes directly behind gputui: gputui {flag} … init {argv[0]}", Exit.USAGE)
        spellings = {option.lstrip("-"): option for option in profile.options}
        alike = nearest(flag.lstrip("-"), spellings)
        if alike is not None:
            fail(f"{refusal}; did you mean {spellings[alike]}? Or {remedy}", Exit.USAGE)
        fail(f"{refusal}; {remedy}", Exit.USAGE)


class _InitVerb(Verb):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[IS_COMMAND] = "--" in args
        return super().parse_args(ctx, args)


@verb("init", changes=True, cls=_InitVerb, context_settings={"ignore_unknown_options": True})
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT | -- COMMAND…")
@click.option("--preset", type=click.Choice([*PRESETS]), help="What the script is built on, where that cannot be seen.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Where to write it.")
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An old log of it, to learn its metrics from.",
)
def command(_session: Session, argv: tuple[str, ...], preset: str | None, out: Path | None, log: Path | None) -> None:
    """Write a profile, with comments, for a script or a command that trains already. The script is read, not run."""
    here = Path.cwd()
    ctx = click.get_current_context()
    if out is not None and (here / out).parent.resolve() != here.resolve():
        fail("--out names a file in this folder: relative paths of the profile begin where it lies", Exit.USAGE)
    # Without asking the driver.
    gpus = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    trial = None
    if log is not None:
        trial = try_log(read_log(log), LearnedLines())
    profile = draft(argv, here, preset=PRESETS.get(preset or ""), gpus=gpus, trial=trial)
    if not ctx.meta[IS_COMMAND]:
        _refuse_options(ctx, argv, profile)
    path = here / (out or f"{profile.name}.yaml")
    try:
        read_profile(profile.text, path)
    except ProfileError as error:
        fail(
            f"no valid profile could be drafted: {error.problems[0]}; gputui help profiles says how to write one",
            Exit.USAGE,
        )
    try:
        write_new(path, profile.text)
    except FileExistsError:
        fail(f"{shown_path(path)} is there already; choose another with --out, or remove it", Exit.REFUSED)
    except OSError as error:
        fail(f"{shown_path(path)} cannot be written: {error.strerror}", Exit.REFUSED)
    for mark, lines in (("✓", profile.findings), ("▲", profile.open_points)):
        for line in lines:
            say(f"{mark} {line}")
    file = f"./{shown_path(path)}"
    say(f"wrote {file}; look through it, then: gputui check {file}, gputui run {file}")
