"""Shared by all commands: workspace, store, questions to the agent, exit codes, output."""

from __future__ import annotations

import errno
import functools
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import IntEnum
from typing import Any, NoReturn

import click
from msgspec import Struct

from gputui.core.config import Workspace
from gputui.core.errors import ExplainedError
from gputui.core.text import cell_width, clean, clip, clip_middle, fit
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, read_identity, stopped_agent
from gputui.runs.identity import actor, asker
from gputui.store import commands
from gputui.store.commands import AgentVerb
from gputui.store.database import StoreError, StoreMissingError, empty_store, is_locked, open_commander, open_reader
from gputui.store.runs import Run, find_run, read_runs

SCRIPT_SUFFIXES = (".py", ".ipynb", ".sh")
WIDE_COLUMNS = 120  # all columns of the widest table fit
LEAST_LAST_COLUMNS = 24
"""What the last column of a table gets before others are left out."""
LONGEST_CELLS = 32
"""What a longer column before it keeps where the others need the room."""
_GAP = "  "


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


def report_progress(doing: str) -> None:
    """Show what the agent does first, on standard error."""
    click.echo(f"The agent is {doing} …", err=True)


class CommandRefusedError(ExplainedError):
    """The agent, or a check before it, refuses a command; the text is one line that says why."""

    is_refusal = True


Changes = bool | Callable[[Mapping[str, Any]], bool]
"""Whether a command changes anything: runs, queue, agent, this machine or a server. A function of the options' values
where it depends on them. To write a file that the person names, such as a report, is no change."""


def options_of(command: click.Command) -> list[str]:
    """The options of a command, in all their spellings."""
    return [option for parameter in command.params for option in parameter.opts]


class Verb(click.Command):
    """A command that must say whether it changes anything; ``--readonly`` refuses those that do."""

    def __init__(self, *args: Any, changes: Changes, has_json: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.changes = changes
        if has_json:
            self.params.append(_json_option())

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.find_object(Session)
        does_change = self.changes(ctx.params) if callable(self.changes) else self.changes
        if session is not None and session.is_readonly and does_change:
            why = "this home is only read here (--readonly, or another user's)"
            fail(f"{ctx.command_path} changes something; {why}", Exit.REFUSED)
        return super().invoke(ctx)


def _json_option() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Machine-readable.")


Function = Callable[..., Any]


def verb(
    name: str, *, changes: Changes, has_json: bool = False, cls: type[Verb] = Verb, **settings: Any
) -> Callable[[Function], Verb]:
    """Make a function, which gets the session first, a command; a `Group` does so for its subcommands.

    Args:
        changes: whether it changes anything.
        has_json: whether it has the option ``--json``.
        cls: the class of the command.
        settings: those of click.
    """
    make = click.command(name, cls=cls, changes=changes, has_json=has_json, **settings)
    return lambda function: make(click.pass_obj(function))


class Group(click.Group):
    """A group of commands that say whether they change anything."""

    def verb(self, name: str, **settings: Any) -> Callable[[Function], Verb]:
        """Make a function a subcommand, as `verb` does."""

        def add(function: Function) -> Verb:
            command = verb(name, **settings)(function)
            self.add_command(command)
            return command

        return add


def listing(name: str) -> Callable[[Function], JsonGroup]:
    """Make a function, which gets the session first, a group that does what it does where no subcommand follows."""

    def decorate(function: Function) -> JsonGroup:
        @functools.wraps(function)
        def call(**options: Any) -> None:
            ctx = click.get_current_context()
            if ctx.invoked_subcommand is None:
                function(ctx.obj, **options)
            elif any(value for name, value in options.items() if name != "as_json"):
                flags = [parameter.opts[0] for parameter in ctx.command.params if parameter.name != "as_json"]
                fail(f"{' and '.join(flags)} go with {ctx.command_path} alone", Exit.USAGE)

        group: JsonGroup = click.group(name, cls=JsonGroup, invoke_without_command=True)(call)
        group.params.append(_json_option())
        return group

    return decorate


class JsonGroup(Group):
    """A command group whose own ``--json`` also applies to its subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.params.get("as_json"):
            ctx.default_map = {name: {"as_json": True} for name in self.commands}
        return super().resolve_command(ctx, args)


class RunName(click.ParamType[str]):
    """A run's name, taken as it is."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Imported on first use: it would delay the first frame of the screen.
        from gputui.runs.labels import LabelError, checked_name

        try:
            return checked_name(str(value))
        except LabelError as error:
            self.fail(str(error), param, ctx)


class Session(Struct, frozen=True):
    """The workspace of one command, with access to its store and agent.

    Attributes:
        is_readonly: whether commands that change something are refused.
        is_anothers: whether the home is another user's.
    """

    workspace: Workspace
    is_readonly: bool = False
    is_anothers: bool = False

    def reader(self) -> sqlite3.Connection:
        """A read-only connection; ends the command if there is none. Warns of a stopped agent."""
        if (stopped := stopped_agent(self.workspace)) is not None:
            click.echo(f"gputui: {stopped}", err=True)
        with exit_on(StoreError, code=Exit.UNREACHABLE), exit_on(StoreMissingError, code=Exit.REFUSED):
            return open_reader(self.workspace.database)

    def reader_or_empty(self) -> sqlite3.Connection:
        """As `reader`, but of a store without anything if nothing has been recorded yet."""
        if self.workspace.database.exists():
            return self.reader()
        return empty_store()

    def note_missing_agent(self, *, is_active: bool) -> None:
        """Warn if something is active and no agent supervises it."""
        if is_active and read_identity(self.workspace) is None:
            click.echo("gputui: no agent runs, so nothing is supervised or recorded; gputui agent start", err=True)

    def need_own_settings(self) -> None:
        """End the command in a home whose settings files are another user's."""
        if self.is_anothers:
            fail("the settings of this home are its owner's, and may not be in it", Exit.REFUSED)

    def need_agent(self) -> None:
        """Start an agent if none runs; ends the command if that fails. A read-only command goes on without."""
        if self.is_readonly:
            if read_identity(self.workspace) is None:
                click.echo("gputui: no agent runs, and --readonly starts none: this may be old", err=True)
            return
        with exit_on(AgentUnreachableError, code=Exit.UNREACHABLE):
            ensure_agent(self.workspace, report=report_progress)

    def ask(self, agent_verb: AgentVerb, run_id: str | None, *, meanwhile: str = "", **args: Any) -> dict[str, Any]:
        """Send a command to the agent and return the answer.

        Args:
            agent_verb: one of the agent's commands.
            run_id: the run that it is about; None if about none.
            meanwhile: a remedy while nothing can be written.
            args: the arguments of the command.

        Raises:
            CommandRefusedError: the agent refuses it.
        """
        self.need_agent()
        with closing(self.commander()) as connection, self.writing(meanwhile):
            arguments = {**args, "asker": asker()}
            command_id = commands.submit(connection, agent_verb, run_id, arguments, actor(), now=time.time())
            commands.ring(self.workspace.doorbell)
            return self.wait(connection, command_id, commands.patience_seconds(agent_verb))

    @contextmanager
    def writing(self, meanwhile: str = "") -> Iterator[None]:
        """End the command with one line if the state directory cannot be written."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = error_text(error)
            if isinstance(error, OSError) and error.errno == errno.E2BIG:
                fail(reason, Exit.REFUSED)
            remedy = "free some disk space or check permissions"
            if is_locked(error):
                remedy = "another program holds it, try again"
            elif meanwhile:
                remedy += f"; {meanwhile}"
            fail(f"cannot write {self.workspace.state}: {reason}; {remedy}", Exit.REFUSED)

    def commander(self) -> sqlite3.Connection:
        """A connection that may submit commands; ends the command if there is none."""
        with exit_on(StoreError, code=Exit.UNREACHABLE):
            return open_commander(self.workspace.database)

    def wait(
        self, connection: sqlite3.Connection, command_id: int, seconds: float = commands.ANSWER_SECONDS
    ) -> dict[str, Any]:
        """The answer to a command. Raises CommandRefusedError."""
        before = "the agent does not answer, and the command cannot be taken back ("
        after = "): it may still be carried out; see gputui ps"
        with exit_on(commands.NotWithdrawnError, code=Exit.UNREACHABLE, before=before, after=after):
            answer = commands.wait_for_answer(connection, command_id, seconds, is_in_vain=self._is_in_vain)
        if answer is None:
            if (stopped := stopped_agent(self.workspace)) is not None:
                fail(str(stopped), Exit.UNREACHABLE)
            fail(f"the agent does not answer; its log is {self.workspace.agent_log}", Exit.UNREACHABLE)
        if answer.state == "refused":
            raise CommandRefusedError(answer.reason or "refused")
        return answer.result or {}

    def _is_in_vain(self) -> bool:
        """Return whether no agent will answer. One that ended while the command was written,
        because no client needed it, is started again."""
        if stopped_agent(self.workspace) is not None:
            return True
        if read_identity(self.workspace) is None and not self.workspace.agent_stopped.exists():
            try:
                ensure_agent(self.workspace, report=report_progress)
            except AgentUnreachableError:
                return True
        return False

    def find_run(self, connection: sqlite3.Connection, name: str | None, *, only: bool = False) -> Run:
        """The run of a name, the newest for None; ends the command if it is not there."""
        if name is None:
            newest = read_runs(connection, limit=1)
            if not newest:
                fail(f"no run yet in {self.workspace.state}; gputui profile list shows what can run", Exit.REFUSED)
            return newest[0]
        return find_run(connection, name, only=only)


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error, and exit with a documented code."""
    say_error(message)
    sys.exit(code)


def refuse(problems: Iterable[str], code: int) -> NoReturn:
    """Print one line per problem on standard error, and exit with a documented code."""
    for problem in problems:
        say_error(problem)
    sys.exit(code)


@contextmanager
def exit_on(*errors: type[Exception], code: int, before: str = "", after: str = "") -> Iterator[None]:
    """End the command if one of these errors is raised, with its lines (of an OSError only what the system says)
    between ``before`` and ``after``."""
    try:
        yield
    except errors as error:
        refuse([f"{before}{line}{after}" for line in error_text(error).splitlines()], code)


def error_text(error: Exception) -> str:
    """The text of an error; of an OSError only what the system says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def say_error(message: str) -> None:
    """Print one line on standard error."""
    click.echo(f"gputui: {clean(message)}", err=True)


def typed_moment(at: str | None) -> float | None:
    """The moment of ``--at`` in UTC unix seconds, None for now; ends the command if it is invalid."""
    if at is None:
        return None
    from gputui.core.typed_time import TypedTimeError, parse_moment

    with exit_on(TypedTimeError, code=Exit.USAGE, before="--at: "):
        return parse_moment(at, time.time())


def print_json(value: Any) -> None:
    """Print a value as JSON, indented for a person at a terminal."""
    indent = None if terminal_columns() is None else 2
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def print_result(value: Any, text: str, as_json: bool) -> None:
    """Print a value as JSON, or its text for a person."""
    if as_json:
        print_json(value)
    else:
        say(text)


def print_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, one element per line, without building it: it may have millions."""
    before = "["
    for value in values:
        click.echo(before + json.dumps(value, ensure_ascii=False), nl=False)
        before = ",\n"
    end = "[]" if before == "[" else "]"
    click.echo(end)


def say(text: str) -> None:
    """Print a line for a person, with control characters removed."""
    click.echo(clean(text))


def terminal_columns() -> int | None:
    """The width of the terminal that is printed on; None for a file or pipe."""
    # Standard output is None if it was closed.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    if is_terminal:
        return shutil.get_terminal_size().columns
    return None


def is_wide() -> bool:
    """Return whether lists have room for columns that are left out of narrow terminals."""
    columns = terminal_columns()
    return columns is None or columns >= WIDE_COLUMNS


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print left-aligned columns, two spaces apart, in a terminal without broken lines (`table_lines`)."""
    for line in table_lines(header, rows, spare, terminal_columns()):
        say(line)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], room: int | None
) -> list[str]:
    """The lines of `print_table`.

    What is too wide loses the middles of its longest cells before the last column, then columns that can be spared,
    then the end of the last column.

    Args:
        header: the titles of the columns.
        rows: the cells of each row.
        spare: titles of columns that can be spared, the first ones first.
        room: the most cells of a line; None for any.
    """
    table = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(cell_width(cell) for cell in column) for column in zip(*table, strict=True)]
    columns = list(range(len(header)))

    def excess() -> int:
        needed = sum(widths[column] + len(_GAP) for column in columns[:-1]) + min(widths[-1], LEAST_LAST_COLUMNS)
        if room is None:
            return 0
        return needed - room

    for column in sorted(columns[:-1], key=lambda column: -widths[column]):
        if excess() > 0 and widths[column] > LONGEST_CELLS:
            widths[column] = max(LONGEST_CELLS, widths[column] - excess())
    for name in spare:
        if excess() > 0 and name in header:
            columns.remove(header.index(name))
    *before, last = columns
    lines = []
    for row in table:
        cells = [fit(clip_middle(row[column], widths[column]), widths[column]) for column in before]
        lines.append(_GAP.join([*cells, row[last]]).rstrip())
    if room is None:
        return lines
    return [clip(line, room) for line in lines]
