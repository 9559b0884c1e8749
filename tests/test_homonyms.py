"""No word for two things: a class's name is defined in one package of gputui only."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import gputui

ROOT = Path(gputui.__file__).parent

ALLOWED: dict[str, str] = {}
"""Names that stay in several packages, each with its reason."""


def homonyms(root: Path) -> dict[str, list[str]]:
    """Public classes by their name, where packages directly below ``root`` share one: the files that define them."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(root))
    return {
        name: [str(path) for path in paths]
        for name, paths in found.items()
        if len({path.parts[0] for path in paths}) > 1
    }


def test_no_name_is_defined_in_two_packages() -> None:
    shared = homonyms(ROOT)
    assert {name: files for name, files in shared.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() <= shared.keys(), "no reason is given for a name that is no longer shared"


def test_a_new_homonym_is_found(tmp_path: Path) -> None:
    for package, text in (
        ("a", "class Plan: ..."),
        ("b", "class Plan: ...\nclass Own: ..."),
        ("b/c", "class Own: ..."),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "one.py").write_text(text)
    assert homonyms(tmp_path) == {"Plan": ["a/one.py", "b/one.py"]}
