"""The difference between the code of two runs, by the commit and the diff of each launch: by git if
a checkout still has both commits, else the two stored diffs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.core.errors import ExplainedError
from gputui.core.redaction import Redactor
from gputui.runs.code_version import code_words, run_git
from gputui.runs.redaction import secrets_of
from gputui.runs.submission import SPEC_FILE, read_spec

GIT_SECONDS = 20.0  # a large repository, before whose state a person waits


class CodeUnknownError(ExplainedError):
    """The code of a run is not known; the text names the run and the reason."""

    is_refusal = True


class _Code(NamedTuple):
    run_id: str
    workdir: Path
    commit: str
    diff: str


def run_code_diff(runs: Path, first_id: str, second_id: str) -> list[str]:
    """The diff from the code of one run to that of another, after a head line for each, without secrets.

    Runs git, which may take seconds.

    Args:
        runs: the folder of all runs.

    Raises:
        CodeUnknownError: a run did not run in a git checkout.
        SpecError: its specification cannot be read.
    """
    codes: list[_Code] = []
    secrets: list[str] = []
    heads: list[str] = []
    for run_id, sign in ((first_id, "---"), (second_id, "+++")):
        spec = read_spec(runs / run_id / SPEC_FILE)
        version = code_words(spec.code)
        if spec.code is None or version is None:
            raise CodeUnknownError(f"{run_id} did not run in a git checkout, or was launched by an older gputui")
        codes.append(_Code(run_id, Path(spec.workdir), str(spec.code["commit"]), str(spec.code.get("diff") or "")))
        secrets += secrets_of(spec)
        heads.append(f"{sign} {run_id}: {version}")
    redactor = Redactor(secrets)
    return [redactor.text(line) for line in (*heads, "", *_difference(*codes))]


def _difference(code: _Code, former: _Code) -> Sequence[str]:
    if (code.commit, code.diff) == (former.commit, former.diff):
        return ["The tracked files are the same."]
    with tempfile.TemporaryDirectory(prefix="gputui-") as folder:
        for workdir in dict.fromkeys((former.workdir, code.workdir)):
            trees = [_tree(workdir, version, Path(folder)) for version in (code, former)]
            if None not in trees:
                text = _git(
                    workdir, Path(folder), "diff", "--no-color", "--no-ext-diff", "--no-textconv", *map(str, trees)
                )
                if text is not None:
                    return text.splitlines() or ["The tracked files are the same."]
    lines: list[str] = []
    for version in (code, former):
        lines += ["", f"{version.run_id} differed from its commit by:", *(version.diff.splitlines() or ["nothing"])]
    return ["No checkout has both commits any more.", *lines]


def _tree(checkout: Path, code: _Code, folder: Path) -> str | None:
    """The git tree of what ran, made in ``folder`` and not in the checkout; None if git cannot."""
    names = _git(checkout, folder, "rev-parse", "--show-toplevel")
    if names is None:
        return None
    top = Path(names.removesuffix("\n"))
    if _git(top, folder, "read-tree", code.commit) is None:
        return None
    if code.diff and _git(top, folder, "apply", "--cached", "--whitespace=nowarn", "-", input_text=code.diff) is None:
        return None
    written = _git(top, folder, "write-tree")
    if written is None:
        return None
    return written.strip()


def _git(checkout: Path, folder: Path, *arguments: str, input_text: str = "") -> str | None:
    """The output of git with an index and object store in ``folder``; None if it fails."""
    objects = run_git(checkout, "rev-parse", "--git-path", "objects", seconds=GIT_SECONDS)
    if objects is None:
        return None
    (folder / "objects").mkdir(exist_ok=True)
    private = {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((checkout / objects.removesuffix("\n")).resolve()),
    }
    return run_git(checkout, *arguments, seconds=GIT_SECONDS, input_text=input_text, environment=private)
