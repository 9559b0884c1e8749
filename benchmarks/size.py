"""The size of the code by package: files, lines, functions, their mean length, and the share of import lines.

python -m benchmarks.size               # this checkout
python -m benchmarks.size --base REF    # and beside each figure the one of a commit
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Size(NamedTuple):
    """What one package, or everything together, takes."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    function_lines: int = 0
    import_lines: int = 0

    def plus(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(self, other, strict=True)))

    def cells(self) -> list[str]:
        mean = f"{self.function_lines / self.functions:.1f}" if self.functions else "–"
        share = f"{100 * self.import_lines / self.lines:.1f} %" if self.lines else "–"
        return [str(self.files), str(self.lines), str(self.functions), mean, share]


def size_of(source: str) -> Size:
    """One module. A function's length is from its ``def`` to its last line."""
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    def lengths(found: list[ast.FunctionDef | ast.AsyncFunctionDef] | list[ast.Import | ast.ImportFrom]) -> int:
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)

    return Size(1, source.count("\n"), len(functions), lengths(functions), lengths(imports))


def by_package(modules: dict[str, str]) -> dict[str, Size]:
    """The packages (two levels of ``gputui``, one of the others) of paths with their sources."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path, source in modules.items():
        parts = Path(path).parent.parts
        name = "/".join(parts[:2] if parts[0] == "gputui" else parts[:1])
        for package in {name, parts[0], "all"}:
            sizes[package] = sizes[package].plus(size_of(source))
    return sizes


def of_commit(ref: str) -> dict[str, str]:
    """The Python modules of a commit.

    Raises:
        subprocess.CalledProcessError: git does not know ``ref``.
    """
    packed = subprocess.run(["git", "archive", ref], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [one for one in archive if one.isfile() and _is_ours(one.name)]
        return {one.name: archive.extractfile(one).read().decode() for one in members}  # type: ignore[union-attr]  # a file has bytes


def _is_ours(path: str) -> bool:
    return path.endswith(".py") and path.split("/")[0] in ("gputui", "trainer", "tests", "benchmarks")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size", description=__doc__)
    parser.add_argument("--base", metavar="REF", help="a commit to compare with")
    base = parser.parse_args().base
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
    now = by_package({path: Path(path).read_text() for path in tracked if _is_ours(path) and Path(path).exists()})
    before = by_package(of_commit(base)) if base else {}
    print("| package | files | lines | functions | mean length | imports |\n|---|---|---|---|---|---|")
    for name in sorted(now.keys() | before.keys()):
        cells = now.get(name, Size()).cells()
        if base:
            cells = [f"{old} → {new}" for old, new in zip(before.get(name, Size()).cells(), cells, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
