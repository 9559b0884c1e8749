"""`gputui agent service`: record permanently by a systemd unit of the user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gputui.core.config import Workspace, locate
from gputui.core.files import replaced
from gputui.machine.systemd import MARK, NAME, unit_path, unit_text
from gputui.runs.identity import actor
from gputui.ui.cli.context import Exit, Group, Session, exit_on, fail, print_json, say
from gputui.ui.cli.record import address_of, output_file

SYSTEMCTL_SECONDS = 30.0  # it waits for an agent that ends
LINGER = Path("/var/lib/systemd/linger")


@click.group("service", cls=Group)
def command() -> None:
    """Record always, by a systemd unit of this user."""


@command.verb("install", changes=lambda options: not options["print_only"])
@click.option("--interval", type=click.FloatRange(0.05, 3600), default=1.0, help="Seconds between samples.")
@click.option("--prometheus", metavar="HOST:PORT", help="Let Prometheus scrape what is recorded there.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write every sample to FILE.ndjson or FILE.csv too.",
)
@click.option("--rotate", metavar="SIZE", help="Start a new file at this size and keep ten: 100MB.")
@click.option("--print", "print_only", is_flag=True, help="Print the unit, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def install(
    session: Session,
    interval: float,
    prometheus: str | None,
    output: Path | None,
    rotate: str | None,
    print_only: bool,
    yes: bool,
) -> None:
    """Show the unit, write it, and start it, now and at each boot."""
    options = ["--interval", f"{interval:g}"]
    if prometheus is not None:
        address_of(prometheus)
        options += ["--prometheus", prometheus]
    if output_file(output, rotate) is not None and output is not None:
        options += ["--output", str(output.absolute())]
        if rotate is not None:
            options += ["--rotate", rotate]
    text = _unit(session.workspace, options)
    path = unit_path(os.environ)
    if print_only:
        click.echo(text, nl=False)
        return
    _refuse_foreign_unit(path)
    say(f"{path}:")
    click.echo(text)
    if not yes and not click.confirm("Write it, and start recording now?"):
        fail("nothing was changed", Exit.REFUSED)
    with exit_on(OSError, code=Exit.REFUSED, before=f"cannot write {path}: "):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            file.write(text.encode())
    for arguments in (("daemon-reload",), ("enable", NAME), ("restart", NAME)):
        problem = _systemctl(*arguments)[1]
        if problem is not None:
            call = " ".join(arguments)
            remedy = f"try systemctl --user enable --now {NAME} when logged in"
            fail(f"{path} is written, but systemctl --user {call} failed: {problem}; {remedy}", Exit.UNREACHABLE)
    say("recording; gputui agent service status shows its state")
    if not _lingers():
        say(
            "It starts with your first login and ends with your last logout. "
            f"For always: loginctl enable-linger {actor()}"
        )


@command.verb("uninstall", changes=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def uninstall(_session: Session, yes: bool) -> None:
    """Stop recording and remove the unit; runs and data stay."""
    path = unit_path(os.environ)
    if not path.exists():
        say("no unit is installed")
        return
    _refuse_foreign_unit(path)
    if not yes and not click.confirm(f"Stop the recorder and remove {path}?"):
        fail("nothing was changed", Exit.REFUSED)
    _, problem = _systemctl("disable", "--now", NAME)
    with exit_on(OSError, code=Exit.REFUSED, before=f"cannot remove {path}: "):
        path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    if problem is not None:
        fail(f"{path} is removed, but systemctl --user disable failed: {problem}", Exit.UNREACHABLE)
    say("removed; runs continue, and recorded data is kept")


@command.verb("status", changes=False, has_json=True)
def status(session: Session, as_json: bool) -> None:
    """Return whether the unit is installed, enabled and running."""
    path = unit_path(os.environ)
    is_installed = path.exists()
    enabled = active = is_for_home = None
    if is_installed:
        enabled = _systemctl("is-enabled", NAME)[0]
        active = _systemctl("is-active", NAME)[0]
        is_for_home = _command_line(_read(path)) == _command_line(_unit(session.workspace, ()))
    if as_json:
        print_json(
            {
                "installed": is_installed,
                "path": str(path),
                "enabled": enabled,
                "active": active,
                "lingers": _lingers(),
                "for_this_home": is_for_home,
            }
        )
    elif not is_installed:
        say("no unit is installed; gputui agent service install shows and writes one")
    else:
        say(f"{path}: {enabled or 'unknown'}, {active or 'unknown'}")
        if not is_for_home:
            say("it records another home, or by another gputui; gputui agent service install renews it")
        if not _lingers():
            say(f"it ends with your last logout; for always: loginctl enable-linger {actor()}")


def _unit(workspace: Workspace, options: Sequence[str]) -> str:
    argv = [sys.executable, "-m", "gputui"]
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    if workspace != locate(None, {"HOME": os.environ.get("HOME", "")}):
        if workspace.state.parent == workspace.profiles.parent:
            argv += ["--home", str(workspace.state.parent)]
        else:
            environment["XDG_CONFIG_HOME"] = str(workspace.profiles.parent.parent)
            environment["XDG_STATE_HOME"] = str(workspace.state.parent)
    return unit_text([*argv, "--record", *options], environment)


def _command_line(text: str) -> str:
    """The recorder and its home in a unit, without its options."""
    line = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "")
    return line.partition('"--record"')[0]


def _refuse_foreign_unit(path: Path) -> None:
    if path.exists() and MARK not in _read(path):
        fail(f"{path} was not written by gputui; move it away first", Exit.REFUSED)


def _read(path: Path) -> str:
    with exit_on(OSError, code=Exit.REFUSED, before=f"cannot read {path}: "):
        return path.read_text("utf-8", "replace")


def _lingers() -> bool:
    return (LINGER / actor()).exists()


def _systemctl(*arguments: str) -> tuple[str | None, str | None]:
    """The answer of systemctl --user, and what went wrong."""
    program = shutil.which("systemctl")
    if program is None:
        return None, "there is no systemd here"
    try:
        process = subprocess.run(
            [program, "--user", *arguments], capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    answer = process.stdout.strip() or None
    problem = None
    if process.returncode != 0:
        problem = (process.stderr.strip().splitlines() or ["it failed"])[-1]
    return answer, problem
