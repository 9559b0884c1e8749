"""What a shell completes: names of the home, read without an agent. Nothing without a home."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from gputui.core.config import Workspace, locate, own_checkout, shipped_profiles, shipped_studies
from gputui.store.database import StoreError, open_reader

Items = list[CompletionItem]


def runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete ids of runs, newest first."""
    return _of_query(ctx, "SELECT run_id, state FROM runs ORDER BY sequence DESC", incomplete)


def studies(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete ids of studies, newest first."""
    return _of_query(ctx, "SELECT study_id, state FROM studies ORDER BY sequence DESC", incomplete)


def profiles_of_runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete the profiles of runs."""
    return _of_query(ctx, "SELECT DISTINCT profile, NULL FROM runs ORDER BY profile", incomplete)


def tags(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete tags of runs."""
    return _of_query(ctx, "SELECT DISTINCT value, NULL FROM run_labels, json_each(tags) ORDER BY value", incomplete)


def gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete indices of GPUs, also behind a comma."""
    before, comma, last = incomplete.rpartition(",")
    items = _of_query(ctx, "SELECT position, name FROM gpus WHERE present ORDER BY position", last)
    taken = before.split(",")
    return [CompletionItem(f"{before}{comma}{item.value}", help=item.help) for item in items if item.value not in taken]


def profiles(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete names of profiles; where none begins so, files."""
    return _names_or_files(_profile_folders(ctx), incomplete)


def study_files(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete names of study files and of profiles; where none begins so, files."""
    return _names_or_files([_workspace(ctx).study_files, shipped_studies(), *_profile_folders(ctx)], incomplete)


def targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete names of ``targets.yaml``."""
    try:
        text = _workspace(ctx).targets.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    # A parser of YAML takes longer to import than a person waits.
    return _beginning([(name, None) for name in re.findall(r"^([\w.-]+):", text, re.MULTILINE)], incomplete)


def _workspace(ctx: click.Context) -> Workspace:
    return locate(ctx.find_root().params.get("home"), checkout=own_checkout())


def _of_query(ctx: click.Context, query: str, incomplete: str) -> Items:
    """The rows of (value, remark) in the store that begin as typed."""
    with suppress(StoreError, sqlite3.Error), closing(open_reader(_workspace(ctx).database)) as connection:
        return _beginning(connection.execute(query).fetchall(), incomplete)
    return []


def _beginning(values: Iterable[tuple[object, str | None]], incomplete: str) -> Items:
    texts = [(str(value), remark) for value, remark in values]
    return [CompletionItem(text, help=remark) for text, remark in texts if text.startswith(incomplete)]


def _profile_folders(ctx: click.Context) -> list[Path]:
    return [Path.cwd() / "profiles", _workspace(ctx).profiles, shipped_profiles()]


def _names_or_files(folders: Iterable[Path], incomplete: str) -> Items:
    """The names of YAML files, the first folder's first; of none that begins so, whatever files there are."""
    names: dict[str, None] = {}
    for folder in folders:
        with suppress(OSError):
            stems = sorted(path.stem for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
            names |= dict.fromkeys(stems)
    return _beginning([(name, None) for name in names], incomplete) or [CompletionItem(incomplete, type="file")]
