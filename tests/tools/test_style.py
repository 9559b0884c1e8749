"""The check of statements and names: what it finds, and what it leaves alone."""

from __future__ import annotations

import ast
from textwrap import dedent

from tests.tables import table
from tools.style import conditionals, problems

FIELDS = "".join(f"    field_{number}: int\n" for number in range(6))


def lines_of(text: str) -> list[int]:
    """The lines of the problems of a module."""
    return [line for line, _ in problems(dedent(text))]


@table("statement", [
    "size = (1 if a else 2) if b else 3", "call(1 if a else 2)", "call(size=1 if a else 2)", "call(f'{1 if a else 2}')",
    "text = f'{1 if a else 2}'", "sizes = (1 if a else 2, 3)", "(first if a else second)()",
    "size = 1 + (b if a else c)",
    "for a in b if c else d: pass", "sizes = [*(a if b else c)]", "sizes = [1 if a else 2 for a in b]",
    "sizes = {a: 1 if a else 2 for a in b}", "call(lambda a: 1 if a else 2)",
])  # fmt: skip
def test_a_conditional_expression_may_not_stand_within_another_expression(statement: str) -> None:
    assert lines_of(statement) == [1]
    assert conditionals(ast.parse(statement)) >= 1


@table("statement", [
    "size = 1 if a else 2", "size = call(a) if b else 2", "sizes = {'a': 1 if a else 2}", "sizes = [a for a in b if a]",
    "def call(): return 1 if a else 2",
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


@table("statement", ["a, b = 1, 2", "row.a, row.b = call(), 3", "def call(a, b, c, *, d, e, f, g): pass",
                     "rows: list[tuple[int, int, int, str]]"])  # fmt: skip
def test_values_that_belong_together_are_a_record_and_others_stand_apart(statement: str) -> None:
    assert lines_of(statement) == [1]


@table("statement", ["a, b = b, a", "x, row.x = row.x, 0", "a, b = call()", "def call(self, a, b, c, d, e, f): pass",
                     "rows: list[tuple[int, int, str]]"])  # fmt: skip
def test_values_are_unpacked_and_exchanged_in_one_statement(statement: str) -> None:
    assert lines_of(statement) == []


def test_commands_have_as_many_options_as_people_need() -> None:
    assert list(problems("def command(a, b, c, d, e, f, g): pass", has_commands=True)) == []


def test_a_record_of_many_fields_explains_them() -> None:
    section = '    """A row.\n\n    Attributes:\n        field_0: a count.\n        field_1: another.\n    """\n'
    assert lines_of(f"class Row:\n{FIELDS}") == [1]
    assert lines_of(f"class Row:\n{section}{FIELDS}") == []
    assert lines_of("class Row:\n    field: int\n") == []
    for poor in ("count: a count", "field_0, field_2: counts", "field_0: Of the row", "field_0: That of the row"):
        assert lines_of(f"class Row:\n{section.replace('field_0: a count', poor)}{FIELDS}") == [1]
    for explained in ('int = Field(description="a count")', "int  # a count"):
        assert lines_of(f"class Row:\n{FIELDS.replace('int', explained)}") == []


@table("module", ["import os\ndef call(os): pass", "def row(): pass\ndef call():\n    row = 1",
                  "from rows import row\ndef call():\n    for row in rows: pass"])  # fmt: skip
def test_no_variable_has_the_name_of_an_import_or_function(module: str) -> None:
    assert len(lines_of(module)) == 1
    assert lines_of(module.replace("import os\n", "").replace("def row(): pass\n", "").replace(" row\n", " x\n")) == []


@table("call", ["send(a, None, b)", "send(a, b, True)", "send(a, b, c, d, e, f)"])
def test_what_only_its_place_explains_is_passed_by_name(call: str) -> None:
    assert lines_of(call) == [1]


@table("call", ["send(a, None)", "send(a, b=None, c=True)", "max(a, b, c, d, e, f)", "getattr(a, name, None)",
                "send(a, b, c, d, e)", "send(*rows, a, b)"])  # fmt: skip
def test_what_is_plain_may_be_passed_by_position(call: str) -> None:
    assert lines_of(call) == []
