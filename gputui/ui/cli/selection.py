"""Several runs for one command: named, or chosen by what they have in common."""

from __future__ import annotations

import functools
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import click

from gputui.core import units
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.runs.disk_use import folder_bytes
from gputui.runs.selection import REFUSALS, RunFilter, age_seconds
from gputui.store.run_states import RunState
from gputui.store.runs import Run, RunLookupError, find_run, read_runs
from gputui.ui.cli import completers
from gputui.ui.cli.context import (
    CommandRefusedError,
    Exit,
    Session,
    fail,
    print_json,
    print_table,
    say,
    say_error,
)

SIZE_SECONDS = 2.0
"""How long the folders of runs without a stored size are looked at, together."""

MOST_NAMED = 3
"""Runs that a filter chose and that are left out for one reason are named up to so many."""

_STATES = [str(state) for state in RunState if state is not RunState.UNKNOWN]

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class _Age(click.ParamType[float]):
    """A span of time, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no time such as 12h, 30d or 8w", param, ctx)
        return seconds


def filter_options(tag: str = "--tag") -> Decorator:
    """Options that choose runs, handed over as ``only``; ``tag`` is the name of the one for tags."""
    options = (
        click.option(
            "--state", "states", multiple=True, type=click.Choice(_STATES), metavar="STATE", help="Only runs in it."
        ),
        _names_option(tag, "tags", "TAG", completers.tags, "Only runs with this tag."),
        _names_option("--profile", "profiles", "NAME", completers.profiles_of_runs, "Only runs of this profile."),
        _names_option("--study", "studies", "ID", completers.studies, "Only trials of this study."),
        click.option(
            "--older",
            "older_seconds",
            type=_Age(),
            metavar="TIME",
            help="Only what ended, or if active began, before: 30d.",
        ),
    )
    return _as_argument("only", RunFilter, RunFilter.__struct_fields__, options)


def _names_option(flag: str, field: str, metavar: str, complete: Function, text: str) -> Decorator:
    """An option for a field of `RunFilter` that may be given several times."""
    return click.option(flag, field, multiple=True, metavar=metavar, shell_complete=complete, help=text)


def _as_argument(
    name: str, make: Callable[..., object], fields: Sequence[str], options: Sequence[Decorator]
) -> Decorator:
    """Options whose values a command gets as one argument.

    Args:
        name: that of the argument.
        make: makes it of the values, which it takes by the names of ``fields``.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            argument = make(**{field: values.pop(field) for field in fields})
            return function(*args, **values, **{name: argument})

        decorated: Function = call
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


class RunChoice(NamedTuple):
    """The runs that a command line names and chooses, and what is to be done with them.

    Attributes:
        names: ids or names; with ``only``, runs among them.
        only: what the runs have in common.
        is_sure: whether nobody is asked about runs that were not named.
        is_rehearsal: whether the runs are only listed.
    """

    names: tuple[str, ...]
    only: RunFilter
    is_sure: bool
    is_rehearsal: bool
    as_json: bool

    def single(self, options: Iterable[str]) -> None:
        """End the command unless it names one run, which these options are for."""
        if len(self.names) != 1 or self.only:
            fail(f"{' and '.join(options)} is for one run, named by its id", Exit.USAGE)


def several_runs(tag: str = "--tag") -> Decorator:
    """Arguments and options of a command that acts on several runs, handed over as ``choice``."""
    options = (
        click.argument("names", nargs=-1, metavar="[RUN]…", shell_complete=completers.runs_to_act_on),
        filter_options(tag),
        click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask about runs that were not named."),
        click.option("--dry-run", "is_rehearsal", is_flag=True, help="Only list the runs."),
    )
    return _as_argument("choice", RunChoice, RunChoice._fields, options)


def is_no_rehearsal(options: Mapping[str, Any]) -> bool:
    """Whether a command with `several_runs` changes anything."""
    return not options["is_rehearsal"]


class Answer(NamedTuple):
    """What came of a command about one run: for programs, and lines for a person."""

    shape: dict[str, Any]
    lines: Sequence[str]


def for_each(session: Session, choice: RunChoice, verb: str, act: Callable[[Run], Answer]) -> None:
    """Act on each chosen run, once the person has seen those that were not named. Refusals are a line each, and the
    exit code tells of them.

    Args:
        choice: which runs.
        verb: what is done with them, a key of `REFUSALS`.
        act: does it with one run; raises CommandRefusedError.
    """
    word = verb.partition(" ")[0]
    if not choice.names and not choice.only:
        fail(f"name the runs, or choose them by --state, --profile, --older …; gputui {word} --help", Exit.USAGE)
    with closing(session.reader()) as connection:
        by_id, refusals = _find_runs(connection, choice.names)
        runs = list(by_id.values())
        if choice.only:
            now = time.time()
            candidates = runs if choice.names else reversed(read_runs(connection))
            runs = [run for run in candidates if choice.only.matches(run, now)]
    chosen_count = len(runs)
    if choice.only or choice.is_rehearsal:
        runs = _list_actionable(session, choice, verb, runs)
    if choice.is_rehearsal:
        is_one_refused = not choice.only and len(runs) < chosen_count
        if refusals or is_one_refused or not runs:
            raise SystemExit(Exit.REFUSED)
        return
    if choice.only:
        _confirm(choice, word, len(runs))
    shapes = []
    for run in runs:
        try:
            answer = act(run)
        except CommandRefusedError as error:
            refusals[run.run_id] = str(error)
            say_error(str(error))
            continue
        shapes.append(answer.shape)
        if not choice.as_json:
            for line in answer.lines:
                say(line)
    if choice.as_json:
        print_json([*shapes, *({"id": run_id, "refused": reason} for run_id, reason in refusals.items())])
    if refusals:
        raise SystemExit(Exit.REFUSED)


def _find_runs(connection: sqlite3.Connection, names: Sequence[str]) -> tuple[dict[str, Run], dict[str, str]]:
    """The runs of these names by their ids, and by the other names why they name none, which is said."""
    runs = {}
    refusals = {}
    for name in names:
        try:
            run = find_run(connection, name, only=True)
        except RunLookupError as error:
            refusals[name] = str(error)
            say_error(str(error))
            continue
        runs[run.run_id] = run
    return runs, refusals


def _list_actionable(session: Session, choice: RunChoice, verb: str, matching: Sequence[Run]) -> list[Run]:
    """List those of the runs that the command acts on, and return them."""
    reasons = {run.run_id: REFUSALS[verb](run) for run in matching}
    runs = [run for run in matching if reasons[run.run_id] is None]
    sizes = sizes_of(session, runs)
    if choice.as_json:
        if choice.is_rehearsal:
            print_json([_shape(run, sizes[run.run_id]) for run in runs])
        return runs
    if runs:
        _list(runs, sizes)
    elif choice.is_rehearsal:
        say("no run matches")
    for reason in dict.fromkeys(filter(None, reasons.values())):
        others = [run_id for run_id, why in reasons.items() if why == reason]
        if choice.names or len(others) <= MOST_NAMED:
            say(f"{', '.join(others)}: {reason}")
        else:
            say(f"{len(others)} other runs cannot be acted on by {verb.partition(' ')[0]} now: {reason}")
    return runs


def _confirm(choice: RunChoice, word: str, count: int) -> None:
    """Ask whether the command may act on so many runs. Ends it if there are none, or it may not."""
    many = units.count_of(count, "run")
    if not count:
        fail(f"no run matches that {word} acts on; gputui ps lists the runs", Exit.REFUSED)
    if choice.is_sure:
        return
    if choice.as_json or not can_ask():
        fail(f"{word} would act on {many}, and nobody can be asked here; --yes does it, --dry-run lists", Exit.REFUSED)
    if not click.confirm(f"{word} {many}?", err=True):
        fail("nothing was done", Exit.REFUSED)


def can_ask() -> bool:
    """Return whether a person sees the list and can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def sizes_of(session: Session, runs: Iterable[Run]) -> dict[str, int | None]:
    """The bytes that each run's folder takes; None for those that there was no time for."""
    deadline = time.monotonic() + SIZE_SECONDS
    sizes = {}
    for run in runs:
        sizes[run.run_id] = run.size_bytes
        if run.size_bytes is None:
            folder = session.workspace.run_dir(run.run_id)
            sizes[run.run_id] = folder_bytes(folder, deadline - time.monotonic())
    return sizes


def _shape(run: Run, size_bytes: int | None) -> dict[str, Any]:
    age = age_seconds(run, time.time())
    return {"id": run.run_id, "state": run.state, "age_seconds": round(age, 3), "size_bytes": size_bytes}


def _list(runs: Sequence[Run], sizes: dict[str, int | None]) -> None:
    now = time.time()
    rows = []
    for run in runs:
        age = units.age(age_seconds(run, now))
        size = units.bytes_text(sizes[run.run_id])
        name = run.name if run.is_renamed else ""
        rows.append((run.run_id, run.state, age, size, name))
    print_table(("RUN", "STATE", "AGE", "SIZE", ""), rows)
    measured = [size for size in sizes.values() if size is not None]
    total = units.bytes_text(sum(measured))
    if len(measured) < len(runs):
        total = f"at least {total}"
    say(f"{units.count_of(len(runs), 'run')}, {total}")
