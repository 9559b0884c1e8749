"""`gputui help`: the pages in a terminal and in a pipe, and the texts that name them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gputui.core.config import Workspace
from gputui.ui.cli import help as pages
from tests.texts import mentions
from tests.ui.cli.program import error_of, output_of

ROOT = Path(__file__).parents[3]
TEXTS = [*ROOT.glob("gputui/**/*.py"), *ROOT.glob("trainer/**/*.py")]


def messages(path: Path) -> Iterator[str]:
    """The texts of a module that may name a page, without its docstrings."""
    source = path.read_text("utf-8")
    if "docs/" not in source and "gputui help" not in source:
        return
    tree = ast.parse(source)
    notes = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in notes:
            yield node.value


def test_the_pages_are_listed_with_a_line_each(workspace: Workspace) -> None:
    listed = output_of(workspace, "help").splitlines()
    assert [line.split()[0] for line in listed] == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert all(len(line.split()) > 2 and len(line) <= 80 for line in listed)


@pytest.mark.parametrize("name", pages.topics())
def test_a_page_in_a_pipe_is_plain_and_leads_to_pages_that_exist(workspace: Workspace, name: str) -> None:
    text = output_of(workspace, "help", name)
    assert "\x1b" not in text
    assert not re.search(r"\]\(|!\[|<!--", text)
    assert set(re.findall(r"gputui help ([\w-]+)", text)) <= pages.topics().keys()
    assert max(map(len, text.splitlines())) <= pages.MOST_COLUMNS


def test_a_link_is_a_command_of_the_shell() -> None:
    page = "![picture](images/x.png)\n\nSee [how](profiles.md#sinks), [this](#a), [code](../x.md), [it](https://x.org)."
    assert pages.with_command_links(page, pages.topics()) == (
        "See how (`gputui help profiles`), this, code, [it](https://x.org)."
    )


def test_only_a_page_longer_than_the_terminal_is_paged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(click, "echo_via_pager", lambda text, color: paged.append(text))
    monkeypatch.setenv("LINES", "6")
    pages.show("# Title\n\nA `line`.", is_terminal=True)
    pages.show("- line\n" * 20, is_terminal=False)
    assert not paged
    assert "line" in capsys.readouterr().out
    pages.show("- line\n" * 20, is_terminal=True)
    assert "\x1b" in paged[0]
    assert capsys.readouterr().out == ""


def test_what_is_no_page_names_the_nearest(workspace: Workspace) -> None:
    assert "profiles" in error_of(workspace, "help", "profils", code=2)
    assert mentions(error_of(workspace, "help", "report", code=2), "gputui report --help")


def test_messages_and_profiles_name_pages_by_the_command() -> None:
    texts = [text for path in TEXTS for text in messages(path)]
    texts += [path.read_text("utf-8") for path in (ROOT / "profiles").glob("*.yaml")]
    assert [text for text in texts if re.search(r"docs/[\w-]+\.md", text)] == []
    topics = {name for text in texts for name in re.findall(r"gputui help ([a-z]+)", text)}
    assert topics
    assert topics <= pages.topics().keys()
