"""No word for two things: a public class's name is defined once in gputui, and once in the trainer."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import gputui
import trainer

GPUTUI = Path(gputui.__file__).parent
TRAINER = Path(trainer.__file__).parent

SHARED: dict[str, str] = {
    "Objective": "both are the field's: there the metric that a study improves, here a model with its loss",
    "Run": "there a stored run, here the training of this process",
    "Settings": "what a person has set, there of the screen, here of a training",
}
"""Names that gputui and the trainer share, each with its reason. They are programs of their own: no module and no test
but those of the contract between them imports both. There is gputui, here the trainer."""


def homonyms(*roots: Path) -> dict[str, list[str]]:
    """Public classes by their name that more than one file below ``roots`` defines: these files."""
    places: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(root.parent).as_posix())
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_name_is_defined_twice_in_a_program() -> None:
    assert homonyms(GPUTUI) == {}
    assert homonyms(TRAINER) == {}


def test_each_name_that_both_programs_have_has_a_reason() -> None:
    assert homonyms(GPUTUI, TRAINER).keys() == SHARED.keys()


def test_a_new_homonym_is_found(tmp_path: Path) -> None:
    root = tmp_path / "x"
    for package, text in (
        ("a", "class Plan: ..."),
        ("b", "class Plan: ...\nclass Own: ...\nclass _Private: ..."),
        ("b/c", "class Own: ...\nclass _Private: ..."),
    ):
        (root / package).mkdir(parents=True)
        (root / package / "one.py").write_text(text)
    assert homonyms(root) == {"Plan": ["x/a/one.py", "x/b/one.py"], "Own": ["x/b/c/one.py", "x/b/one.py"]}
