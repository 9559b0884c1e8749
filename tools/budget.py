"""Hold every room of the code to its budget: ``python -m tools.budget``, a part of ``make check``.

``budget.toml`` gives each room its paths and the most lines and files (or words) that it may have. A room may shrink;
it grows only by a commit that edits its budget and says why. Lines have slack, so that nothing is folded to fit.
``--lower`` sets each budget to what its room has now (for lines: with the slack), where that is less. ``--table``
shows each room of code with the form of its functions.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_name("budget.toml")
# What ruff allows beyond this would let a file grow sideways: such a line counts as two.
WIDE_COLUMNS = 100
LINE_SLACK = 0.03

HEADER = """\
# The most that each room may have: see tools/budget.py. Lines count with blanks and docstrings, one of more than 100
# columns as two; they have a slack of 3 %. Rooms are those of docs/architecture.md.
"""


class Room(NamedTuple):
    paths: tuple[str, ...]
    limits: Mapping[str, int]  # the most of each measure: "lines", "files", "words"


def load(path: Path) -> dict[str, Room]:
    """Read the rooms of a budget file."""
    return {
        name: Room(tuple(table["paths"]), {key: most for key, most in table.items() if key != "paths"})
        for name, table in tomllib.loads(path.read_text("utf-8")).items()
    }


def dump(rooms: Mapping[str, Room]) -> str:
    """Write rooms as a budget file."""
    text = [HEADER]
    for name, room in rooms.items():
        paths = ", ".join(f'"{path}"' for path in room.paths)
        limits = [f"{key} = {most}" for key, most in room.limits.items()]
        text.append("\n".join([f"[{name}]", f"paths = [{paths}]", *limits, ""]))
    return "\n".join(text)


def files_of(room: Room, tracked: list[str]) -> list[str]:
    """The room's share of ``tracked``: pages where words count, Python files elsewhere."""
    ending = ".md" if "words" in room.limits else ".py"
    return [
        file
        for file in tracked
        if file.endswith(ending) and any(file == path or file.startswith(f"{path}/") for path in room.paths)
    ]


def measure(room: Room, tracked: list[str], root: Path) -> dict[str, int]:
    """Count what the room has of each thing that it has a limit for."""
    texts = [(root / file).read_text("utf-8") for file in files_of(room, tracked)]
    lines = [line for text in texts for line in text.splitlines()]
    counted = {
        "lines": sum(1 + (len(line) > WIDE_COLUMNS) for line in lines),
        "files": len(texts),
        "words": sum(len(text.split()) for text in texts),
    }
    return {key: counted[key] for key in room.limits}


def problems(rooms: Mapping[str, Room], tracked: list[str], root: Path) -> Iterator[str]:
    """Name each room above its budget, and each file of the packages that no room, or more than one, has."""
    for name, room in rooms.items():
        for key, count in measure(room, tracked, root).items():
            if count > room.limits[key]:
                yield f"{name}: {count} {key}, {count - room.limits[key]} above its budget of {room.limits[key]}"
    homes = [file for room in rooms.values() for file in files_of(room, tracked)]
    for file in tracked:
        if file.endswith(".py") and file.startswith(("gputui/", "trainer/")) and homes.count(file) != 1:
            yield f"{file} is in {homes.count(file)} rooms of {BUDGET.name}, not in one"


def lowered(rooms: Mapping[str, Room], tracked: list[str], root: Path) -> dict[str, Room]:
    """Give each room the smaller of its budget and what it has, lines with their slack."""
    result = {}
    for name, room in rooms.items():
        counts = measure(room, tracked, root)
        if "lines" in counts:
            counts["lines"] += round(counts["lines"] * LINE_SLACK)
        result[name] = room._replace(limits={key: min(most, counts[key]) for key, most in room.limits.items()})
    return result


class Shape(NamedTuple):
    """A room's code in numbers."""

    room: str
    lines: int
    files: int
    longest: int  # lines of its longest file
    mean: float  # lines of a function
    once: int  # functions of at most nine lines that are named once, beside their definition and imports


def shapes(rooms: Mapping[str, Room], tracked: list[str], root: Path) -> Iterator[Shape]:
    """Measure each room of ``gputui``; a function is used once where no other file or line names it again."""
    files = {name: files_of(room, tracked) for name, room in rooms.items() if "lines" in room.limits}
    files = {name: found for name, found in files.items() if any(file.startswith("gputui/") for file in found)}
    texts = {file: (root / file).read_text("utf-8") for room_files in files.values() for file in room_files}
    named = Counter[str]()
    for text in texts.values():
        named.update(re.findall(r"\w+", re.sub(r"^\s*(from .* import (\(.*?\)|.*)|import .*)$", "", text, flags=re.M)))
    for name, found in files.items():
        lengths, once = [], 0
        for file in found:
            for node in ast.walk(ast.parse(texts[file])):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    lengths.append(length)
                    once += length <= 9 and named[node.name] == 2
        counted = measure(rooms[name], tracked, root)
        longest = max(len(texts[file].splitlines()) for file in found)
        yield Shape(name, counted["lines"], len(found), longest=longest, mean=sum(lengths) / len(lengths), once=once)


def tracked_files() -> list[str]:
    """The checkout's files that git does not ignore, new ones too."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [file for file in listed.stdout.decode().split("\0") if (ROOT / file).is_file()]


def main(arguments: list[str]) -> int:
    tracked = tracked_files()
    rooms = load(BUDGET)
    if arguments == ["--lower"]:
        BUDGET.write_text(dump(lowered(rooms, tracked, ROOT)), "utf-8")
        return 0
    if arguments == ["--table"]:
        print("room           lines  files  longest  mean function  used once")
        for shape in shapes(rooms, tracked, ROOT):
            print("{:<12}{:>8}{:>7}{:>9}{:>15.1f}{:>11}".format(*shape))
        return 0
    findings = list(problems(rooms, tracked, ROOT))
    for finding in findings:
        print(finding, file=sys.stderr)
    if findings:
        print(f"remove what a room no longer needs, or raise its budget in {BUDGET.name} and say why", file=sys.stderr)
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
