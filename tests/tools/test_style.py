"""The check of statements and names: what it finds, and what it leaves alone."""

from __future__ import annotations

import ast
from textwrap import dedent

from tests.tables import table
from tools.style import conditionals, problems


def lines_of(text: str) -> list[int]:
    """The lines of the problems of a module."""
    return [line for line, _ in problems(ast.parse(dedent(text)))]


@table("statement", [
    "size = (1 if a else 2) if b else 3", "call(1 if a else 2)", "call(size=1 if a else 2)", "call(f'{1 if a else 2}')",
    "sizes = [1 if a else 2 for a in b]", "sizes = {a: 1 if a else 2 for a in b}", "call(lambda a: 1 if a else 2)",
])  # fmt: skip
def test_a_conditional_expression_may_not_stand_within_another_a_comprehension_or_a_call(statement: str) -> None:
    assert lines_of(statement) == [1]
    assert conditionals(ast.parse(statement)) >= 1


@table("statement", [
    "size = 1 if a else 2", "size = call(a) if b else 2", "text = f'{1 if a else 2}'", "sizes = (1 if a else 2, 3)",
    "sizes = [a for a in b if a]", "(first if a else second)()",
])  # fmt: skip
def test_a_plain_choice_of_a_value_may_stay(statement: str) -> None:
    assert lines_of(statement) == []


@table("statement", [
    "found = call()", "for each in rows: call(each)", "def call(given): pass", "rows = [one for one in rows]",
    "if (left := call()): pass", "class Row:\n    words: str",
])  # fmt: skip
def test_a_name_says_what_it_holds(statement: str) -> None:
    assert len(lines_of(statement)) == 1


def test_attributes_keywords_and_keys_of_profiles_have_names_of_their_own() -> None:
    assert lines_of("call(found=row.found)\nclass Phase:\n    until: int\n") == []
    assert lines_of("until = 3") == [1]
