"""The walk of docs/architecture.md: each step exists, an earlier file of the walk names it, and the files are few."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import gputui

ROOT = Path(gputui.__file__).parent
PAGE = ROOT.parent / "docs" / "architecture.md"
MOST_FILES = {"From a rank's death to the next first step": 28}


class Step(NamedTuple):
    file: str
    names: tuple[str, ...]
    is_handed_over: bool


def steps_of(title: str) -> list[Step]:
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n#")[0]
    rows = [row.split("|")[1:4] for row in section.splitlines() if row.startswith("| ") and "`" in row]
    return [
        Step(file.strip(" `⇢"), tuple(re.findall(r"`([\w.]+)`", names)), file.strip().startswith("⇢"))
        for file, names, _ in rows
    ]


def defined_in(file: str) -> set[str]:
    """Top-level functions, classes and assigned names of a file, and ``Class.member`` for those of its classes."""
    names = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("title", MOST_FILES)
def test_each_step_of_a_walk_exists(title: str) -> None:
    missing = [f"{step.file}: {name}" for step in steps_of(title) for name in set(step.names) - defined_in(step.file)]
    assert missing == []


@pytest.mark.parametrize("title", MOST_FILES)
def test_each_step_is_named_where_the_walk_comes_from(title: str) -> None:
    """Or another process or thread takes over there, which the arrow says."""
    steps = steps_of(title)
    read = (ROOT / steps[0].file).read_text("utf-8")
    lost = []
    for step in steps[1:]:
        if not step.is_handed_over and not any(
            re.search(rf"\b{part}\b", read) for name in step.names for part in name.split(".")
        ):
            lost.append(step.file)
        read += (ROOT / step.file).read_text("utf-8")
    assert lost == []


@pytest.mark.parametrize(("title", "most"), MOST_FILES.items())
def test_a_walk_reads_few_files(title: str, most: int) -> None:
    assert 0 < len({step.file for step in steps_of(title)}) <= most
