"""How the code of two runs differs: from the commit and the diff that each was launched with.

Where a checkout still has both commits, git itself compares what ran. Otherwise the two stored diffs are shown.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gputui.redaction import Redactor
from gputui.runs.code_version import code_words
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, read_spec

GIT_SECONDS = 20.0


class CodeUnknownError(Exception):
    """The code of a run is not known; the text says of which, and why."""


class _Code(NamedTuple):
    run_id: str
    workdir: Path
    code: Mapping[str, Any]

    @property
    def commit(self) -> str:
        return str(self.code["commit"])

    @property
    def diff(self) -> str:
        return str(self.code.get("diff") or "")


def run_code_diff(runs: Path, one: str, other: str) -> list[str]:
    """The lines of the diff from the code of the run ``one`` to that of ``other``, secrets of both left out, behind a
    line for each that says what ran; ``runs`` is the folder of all runs. Runs git, which may take seconds. Raises
    CodeUnknownError or SpecError."""
    specs = [read_spec(runs / run_id / SPEC_FILE) for run_id in (one, other)]
    first, second = (_code(run_id, spec) for run_id, spec in zip((one, other), specs, strict=True))
    hide = Redactor([secret for spec in specs for secret in secrets_of(spec)])
    heads = [f"{sign} {each.run_id}: {code_words(each.code)}" for sign, each in (("---", first), ("+++", second))]
    return [hide.text(line) for line in (*heads, "", *_difference(first, second))]


def _code(run_id: str, spec: RunSpec) -> _Code:
    if spec.code is None or code_words(spec.code) is None:
        raise CodeUnknownError(f"{run_id} did not run in a git checkout, or was launched by an older gputui")
    return _Code(run_id, Path(spec.workdir), spec.code)


def _difference(one: _Code, other: _Code) -> Sequence[str]:
    if (one.commit, one.diff) == (other.commit, other.diff):
        return ["The tracked files are the same."]
    with tempfile.TemporaryDirectory(prefix="gputui-") as folder:
        for place in dict.fromkeys((other.workdir, one.workdir)):
            trees = [_tree(place, each, Path(folder)) for each in (one, other)]
            if None not in trees:
                text = _git(
                    place, Path(folder), "diff", "--no-color", "--no-ext-diff", "--no-textconv", *map(str, trees)
                )
                if text is not None:
                    return text.splitlines() or ["The tracked files are the same."]
    if one.commit == other.commit:
        changed = difflib.unified_diff(one.diff.splitlines(), other.diff.splitlines(), lineterm="", n=3)
        return ["No checkout has this commit any more: the difference between the two diffs.", "", *list(changed)[2:]]
    lines: list[str] = []
    for each in (one, other):
        lines += ["", f"{each.run_id} differed from its commit by:", *(each.diff.splitlines() or ["nothing"])]
    return ["No checkout has both commits any more.", *lines]


def _tree(checkout: Path, each: _Code, folder: Path) -> str | None:
    """The tree of what ran, made in ``folder`` and not in the checkout; None if git cannot."""
    names = _git(checkout, folder, "rev-parse", "--show-toplevel")
    if names is None:
        return None
    top = Path(names.removesuffix("\n"))
    if _git(top, folder, "read-tree", each.commit) is None:
        return None
    if each.diff and _git(top, folder, "apply", "--cached", "--whitespace=nowarn", "-", given=each.diff) is None:
        return None
    written = _git(top, folder, "write-tree")
    return None if written is None else written.strip()


def _git(checkout: Path, folder: Path, *words: str, given: str = "") -> str | None:
    objects = _run(checkout, ["rev-parse", "--git-path", "objects"], {})
    if objects is None:
        return None
    (folder / "objects").mkdir(exist_ok=True)
    private = {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((checkout / objects.removesuffix("\n")).resolve()),
    }
    return _run(checkout, list(words), private, given)


def _run(checkout: Path, words: list[str], private: Mapping[str, str], given: str = "") -> str | None:
    # What a checkout configures to be run beside git must not run here.
    argv = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(checkout), *words]
    try:
        done = subprocess.run(
            argv, input=given, capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS,
            check=False, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **private},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
