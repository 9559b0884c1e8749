"""``--readonly`` with every command that the parser has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gputui.core.config import Workspace
from gputui.ui.cli.context import Verb
from gputui.ui.main import command
from tests.homes import Home
from tests.texts import mentions
from tests.ui.cli.program import call, error_of


@pytest.fixture
def home(home: Home) -> Home:
    home.agent()
    home.run("vit-1", "succeeded")
    return home


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "file.ndjson"
    path.parent.mkdir()
    path.write_text("")
    return path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


ROOT = click.Context(command, info_name="gputui")
WRITING_OPTIONS = {"follow", "clear", "bandwidth", "kill", "loss"}
"""The options by which a command that else only reads changes something."""


def verbs(ctx: click.Context = ROOT) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with the words that call it."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        child = ctx.command.get_command(ctx, name)
        assert child is not None
        if isinstance(child, click.Group):
            for path, leaf in verbs(click.Context(child, parent=ctx, info_name=name)):
                yield (name, *path), leaf
        else:
            yield (name,), child


def value_of(parameter: click.Parameter, file: Path) -> str:
    match parameter.type:
        case click.Choice(choices=choices):
            return str(next(iter(choices)))
        case click.Path(file_okay=False):
            return str(file.parent)
        case click.Path():
            return str(file)
        case click.IntRange():
            return "1"
    return "a=1"


def arguments(leaf: click.Command, file: Path) -> list[str]:
    """The least that a command has to be given, and what makes it change something."""
    arguments_of_leaf = []
    for parameter in leaf.params:
        if isinstance(parameter, click.Argument):
            arguments_of_leaf += [value_of(parameter, file)] * parameter.required
        elif parameter.required or parameter.name in WRITING_OPTIONS:
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            arguments_of_leaf += [parameter.opts[0]] if is_flag else [parameter.opts[0], value_of(parameter, file)]
    return arguments_of_leaf


def test_every_command_says_whether_it_changes_anything_and_is_refused_if_it_does(home: Home, file: Path) -> None:
    folder = home.workspace.state.parent
    refusals = 0
    before = contents(folder)
    for path, leaf in verbs():
        assert isinstance(leaf, Verb), f"{path} is no Verb: it does not say whether it changes anything"
        if leaf.changes is False:
            continue
        text = error_of(home.workspace, "--readonly", *path, *arguments(leaf, file), code=3)
        assert mentions(text, *path, "--readonly")
        assert text.count("\n") == 1
        refusals += 1
    assert refusals > 25
    assert contents(folder) == before


def test_a_check_that_starts_something_elsewhere_is_refused(home: Home) -> None:
    home.workspace.targets.write_text("lab: {kind: ssh, host: nowhere.invalid}\n")
    assert mentions(error_of(home.workspace, "--readonly", "target", "check", "lab", code=3), "--readonly")


def test_no_home_and_no_agent_are_made(workspace: Workspace, file: Path) -> None:
    absent = Workspace(file.parent / "none" / "profiles", file.parent / "none" / "state")
    for words, leaf in verbs():
        assert isinstance(leaf, Verb)
        if leaf.changes is not False:
            error_of(absent, "--readonly", *words, *arguments(leaf, file), code=3)
    for argv in (("--record",), ("gpus",), ("ps",), ("--once",), ("check", "digits-ddp")):
        call(absent, "--readonly", *argv)
    assert not absent.state.parent.exists()


def test_what_only_reads_is_allowed(home: Home) -> None:
    for arguments in (("ps",), ("show", "vit-1"), ("run", "digits-ddp", "--dry-run"), ("queue",), ("gpus",)):
        assert call(home.workspace, "--readonly", *arguments).code == 0, arguments
