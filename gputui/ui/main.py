"""The command line: one module per command, imported when it is called; without a command, the screen."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gputui.core.config import Workspace, locate, own_checkout
from gputui.core.errors import ExplainedError
from gputui.runs.agent_process import AgentUnreachableError
from gputui.store.database import StoreError
from gputui.ui.cli.context import Exit, Session, exit_on, fail, refuse, typed_moment
from gputui.version import VERSION

# section of the list of commands → command → (module, or module:function if that is not `command`; its line there)
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Runs": {
        "run": ("run", "Launch a run: a profile, a script, any command."),
        "ps": ("ps", "List the runs."),
        "show": ("show", "Show one run with its attempts."),
        "logs": ("logs", "Print the output of a run."),
        "metrics": ("metrics", "Print the metrics of a run."),
        "explain": ("explain", "Explain what happened to a run, and why."),
        "stop": ("run_verbs:stop", "Stop runs; they may save a checkpoint first."),
        "resume": ("resume", "Continue runs, each from its newest valid checkpoint."),
        "restart": ("run_verbs:restart", "Begin runs again from the start."),
        "rm": ("run_verbs:rm", "Remove runs that have ended."),
        "label": ("label", "Change name, tags and note of runs."),
        "queue": ("queue", "List waiting runs; pause the queue, move a run in it."),
        "report": ("report", "Write results and costs of runs as JSON and a page; quality gates."),
        "export": ("export", "Export metrics as CSV, Parquet, for TensorBoard, MLflow…"),
        "import": ("import_runs", "Import a TensorBoard or W&B folder as finished runs."),
    },
    "Studies": {
        "study": ("study", "Search for good parameters, or try a grid: run, list, show, report …"),
    },
    "Profiles": {
        "profile": ("profile", "List the profiles; write one as a job of another system."),
        "init": ("init", "Write a profile for a script or a command."),
        "check": ("check", "Check a profile and show what it would start."),
        "policy": ("policy", "Show what recovery would do, without doing it."),
        "bench": ("bench", "Measure how a profile scales over GPUs."),
    },
    "Machine": {
        "gpus": ("gpus", "List the GPUs and their users."),
        "alerts": ("alerts", "List alerts; acknowledge and silence them; show the rules."),
        "notify": ("notify", "List who is told of what by mail, ntfy, Slack…; send a test."),
        "target": ("target", "List other places to run, and check one."),
        "doctor": ("doctor", "Check this machine: driver, GPUs, disk, limits, database."),
    },
    "Administration": {
        "agent": ("agent", "Start or stop the agent; record always, orphans, Prometheus."),
        "help": ("help", "Print a page of the documentation."),
        "completion": ("completion", "Print the script that completes names in bash, zsh or fish."),
    },
}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}


class VerbGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module, _, attribute = VERBS[name][0].partition(":")
        subcommand = getattr(importlib.import_module(f"gputui.ui.cli.{module}"), attribute or "command")
        assert isinstance(subcommand, click.Command)
        return subcommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from gputui.core.yaml_forms.problems import nearest

            meant = nearest(args[0], VERBS)
            problem = f"no command {args[0]!r}"
            if meant:
                problem += f"; did you mean {meant}?"
            ctx.fail(problem)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _ignore_broken_pipe():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _ignore_broken_pipe():
                return super().invoke(ctx)
        except (OSError, sqlite3.Error) as error:
            remedy = ""
            if ctx.params["home"] is None and not os.environ.get("GPUTUI_HOME"):
                remedy = f"; the state is in {locate(checkout=own_checkout()).state} unless --home says otherwise"
            fail(f"{error}{remedy}", Exit.REFUSED)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing them, as click would."""
        verbs = [CompletionItem(name, help=text) for name, (_, text) in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in verbs.items()])


@contextmanager
def _ignore_broken_pipe() -> Iterator[None]:
    """End the program without an error if nobody reads its output any more, as behind ``| head``."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter must not write to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OK)


@click.group(cls=VerbGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where profiles/ and state/ are (or $GPUTUI_HOME).",
)
@click.option("--record", is_flag=True, help="No screen: record GPUs, host and runs until stopped.")
@click.option("--interval", type=click.FloatRange(0.05, 3600), default=1.0, help="Seconds between samples (--record).")
@click.option("--duration", type=click.FloatRange(0.1), help="End after so many seconds (--record).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (--record, --once).")
@click.option("--once", is_flag=True, help="Print one frame as text and end; works without a terminal.")
@click.option("--at", metavar="TIME", help="Look at a past moment: 03:12, -20m, 2026-11-20 03:12.")
@click.option("--prometheus", metavar="HOST:PORT", help="Let Prometheus scrape what is recorded there (--record).")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write every sample to FILE.ndjson or FILE.csv too (--record).",
)
@click.option("--rotate", metavar="SIZE", help="Start a new file at this size and keep ten: 100MB (--record).")
@click.option("--demo", is_flag=True, help="Eight simulated GPUs and a week of past runs, in a home that is removed.")
@click.option("--readonly", is_flag=True, help="Change nothing: whatever would is refused (exit code 3).")
@click.version_option(VERSION, prog_name="gputui")
@click.pass_context
def command(
    ctx: click.Context,
    home: Path | None,
    record: bool,
    interval: float,
    duration: float | None,
    as_json: bool,
    prometheus: str | None,
    output: Path | None,
    rotate: str | None,
    once: bool,
    at: str | None,
    demo: bool,
    readonly: bool,
) -> None:
    """See the GPUs of this workstation, and launch training on them that is supervised and restarted after failures.

    Without a command: the interactive control center.

    Exit codes: 0 success, 1 the run failed, 2 usage or invalid profile, 3 refused, 4 agent
    unreachable, 130 interrupted.
    """
    workspace = locate(home, checkout=own_checkout())
    is_shared = is_anothers(workspace)
    ctx.obj = Session(workspace, is_readonly=readonly or is_shared, is_anothers=is_shared)
    if ctx.invoked_subcommand is not None:
        return
    if record and readonly:
        fail("--record writes what it reads, which --readonly refuses", Exit.REFUSED)
    if record:
        from gputui.ui.cli.record import record as record_in_foreground

        sys.exit(
            record_in_foreground(
                ctx.obj, interval, duration, as_json=as_json, prometheus=prometheus, output=output, rotate=rotate
            )
        )
    record_options = {"duration": duration, "prometheus": prometheus, "output": output, "rotate": rotate}
    for name, value in record_options.items():
        if value is not None:
            fail(f"--{name} goes with --record", Exit.USAGE)
    if once:
        if demo:
            fail("--once and --demo do not go together: the demo needs a terminal", Exit.USAGE)
        from gputui.ui.once import once as print_once

        sys.exit(print_once(ctx.obj, at=at, as_json=as_json))
    if as_json:
        fail("--json goes with --record and --once", Exit.USAGE)
    sys.exit(open_screen(ctx.obj, demo=demo, at=at))


def is_anothers(workspace: Workspace) -> bool:
    """Return whether the home is another user's, who lets this one read it; ends the command if not."""
    try:
        is_there = stat.S_ISDIR(workspace.state.stat().st_mode)
    except FileNotFoundError:
        return False
    except PermissionError:
        is_there = True
    if is_there and not os.access(workspace.state, os.R_OK | os.X_OK):
        share = "its owner can share it by group: NAME in record.yaml, and chmod g+x on the folders above"
        fail(f"{workspace.state} may not be read by you; {share}", Exit.REFUSED)
    return is_there and not os.access(workspace.state, os.W_OK)


def open_screen(session: Session, *, demo: bool, at: str | None = None) -> int:
    """Open the screen, at the present or at the moment ``at``. Needs a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("the screen needs a terminal; gputui --once and gputui --record work without one", Exit.USAGE)
    if not sys.stderr.isatty():
        # Textual draws on the standard error output.
        fail("the screen is drawn on the standard error output; leave it to the terminal (no 2>FILE)", Exit.USAGE)
    if demo:
        return open_demo(readonly=session.is_readonly, settings=session.workspace.settings, at=at)
    moment_at = typed_moment(at)
    if session.is_readonly and not session.workspace.database.exists():
        fail(f"nothing was recorded in {session.workspace.state}, and --readonly starts no agent", Exit.REFUSED)
    return show(session.workspace, readonly=session.is_readonly, demo=False, moment_at=moment_at)


def show(workspace: Workspace, *, readonly: bool, demo: bool, moment_at: float | None = None) -> int:
    """Run the screen in a home, which is created unless it is only read; returns the exit code."""
    if not readonly:
        before = f"cannot use {workspace.state}: "
        after = "; choose another --home"
        with exit_on(OSError, code=Exit.UNREACHABLE, before=before, after=after):
            workspace.create()
    # Imported modules are no garbage; collecting now would only delay the first frame.
    gc.disable()
    from gputui.ui.tui.data.feed import Feed
    from gputui.ui.views.snapshot import Moment

    # The first snapshot is read while the screen is still being imported.
    feed = Feed(workspace)
    moment = None if moment_at is None else Moment(moment_at)
    feed.look_back(moment)
    feed.start()
    from gputui.ui.tui.app import run

    gc.freeze()
    gc.enable()
    return run(workspace, feed, readonly=readonly, demo=demo)


def open_demo(*, readonly: bool, settings: Path, at: str | None) -> int:
    """Open the screen in a home of simulated GPUs and past runs, which is removed at the end.

    Args:
        readonly: whether the screen changes nothing.
        settings: the user's file of settings, which applies there and remains as it is.
        at: the moment to show, as typed; None for the present.
    """
    from gputui.ui.demo.home import demo_home

    click.echo("preparing the demo: eight simulated GPUs with a week of past runs …", err=True)
    try:
        with demo_home() as workspace:
            with contextlib.suppress(OSError):
                shutil.copyfile(settings, workspace.settings)
            return show(workspace, readonly=readonly, demo=True, moment_at=typed_moment(at))
    except (StoreError, AgentUnreachableError, OSError) as error:
        fail(f"the demo cannot start: {error}", Exit.UNREACHABLE)


def entry() -> None:
    """The console script. It ends with at most one line of error and a documented exit code."""
    if "_GPUTUI_COMPLETE" in os.environ:
        # It tells click how bash is answered.
        importlib.import_module("gputui.ui.cli.completion")
    try:
        command(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(Exit.USAGE)
    except ExplainedError as error:
        code = Exit.REFUSED if error.is_refusal else Exit.USAGE
        refuse(str(error).splitlines(), code)
    except click.UsageError as error:
        path = "gputui" if error.ctx is None else error.ctx.command_path
        fail(f"{error.format_message()} (see {path} --help)", Exit.USAGE)
    except click.ClickException as error:
        fail(error.format_message(), Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(Exit.INTERRUPTED)
