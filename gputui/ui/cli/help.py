"""`gputui help`: the pages of the documentation, which ship with gputui."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from gputui.core.config import shipped_pages
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.ui.cli.context import Exit, Session, fail, verb

MOST_COLUMNS = 100  # longer lines of prose are hard to read


def topics() -> dict[str, Path]:
    """The pages by the name that ``gputui help`` takes."""
    return {path.stem: path for path in sorted(shipped_pages().glob("*.md"))}


def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in topics() if name.startswith(incomplete)]


@verb("help", changes=False)
@click.argument("topic", required=False, shell_complete=complete)
def command(_session: Session, topic: str | None) -> None:
    """Print a page of the documentation; without TOPIC, list the pages. Commands have --help."""
    pages = topics()
    ctx = click.get_current_context()
    if topic is None:
        formatter = ctx.make_formatter()
        formatter.write_dl([(name, summary(path.read_text("utf-8"))) for name, path in pages.items()])
        click.echo(formatter.getvalue(), nl=False)
        return
    if topic in ctx.find_root().command.list_commands(ctx):  # type: ignore[attr-defined]
        fail(f"{topic} is a command: gputui {topic} --help", Exit.USAGE)
    if topic not in pages:
        hint = did_you_mean(topic, pages) or f"there are {', '.join(pages)}"
        fail(f"no page {topic!r}; {hint}", Exit.USAGE)
    show(with_command_links(pages[topic].read_text("utf-8"), pages), is_terminal=sys.stdout.isatty())


def show(page: str, *, is_terminal: bool) -> None:
    """Print a page, by a pager where it is longer than the terminal."""
    columns, lines = shutil.get_terminal_size((MOST_COLUMNS, 24))
    text = terminal_text(page, min(columns, MOST_COLUMNS), is_terminal)
    if is_terminal and text.count("\n") >= lines:
        click.echo_via_pager(text, color=True)
    else:
        click.echo(text, nl=False)


def summary(page: str) -> str:
    """The first sentence of a page."""
    paragraph = page.split("\n\n")[1].replace("\n", " ")
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph).replace("`", "")
    return re.split(r"(?<=[.:])\s", text)[0].rstrip(".:")


def with_command_links(page: str, pages: Mapping[str, Path]) -> str:
    """A page without pictures, its links to others as commands."""

    def command_for(link: re.Match[str]) -> str:
        text = link.group("text")
        target = link.group("target")
        if target.startswith("http"):
            return link.group()
        name = target.partition("#")[0].removesuffix(".md")
        if name in pages:
            return f"{text} (`gputui help {name}`)"
        return text

    without_pictures = re.sub(r"^!\[.*\]\(.*\)\n\n?", "", page, flags=re.MULTILINE)
    return re.sub(r"\[(?P<text>[^]]*)\]\((?P<target>[^)]*)\)", command_for, without_pictures)


def terminal_text(page: str, columns: int, is_terminal: bool) -> str:
    """A page as text of a terminal, or without colours elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=io.StringIO(), width=columns, force_terminal=is_terminal, legacy_windows=False)
    console.print(Markdown(page, hyperlinks=False))
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]
