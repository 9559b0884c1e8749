"""What a shell completes: names of the home, read without an agent. Nothing without a home."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from gputui.core.config import Workspace, locate, own_checkout, shipped_profiles, shipped_studies
from gputui.store.database import StoreError, open_reader

Items = list[CompletionItem]


def _store_completer(query: str) -> Callable[[click.Context, click.Parameter, str], Items]:
    """A completer of what a query for (value, remark) finds in the store."""
    return lambda ctx, _, incomplete: _stored_completions(ctx, query, incomplete)


runs = _store_completer("SELECT run_id, state FROM runs ORDER BY sequence DESC")
studies = _store_completer("SELECT study_id, state FROM studies ORDER BY sequence DESC")
profiles_of_runs = _store_completer("SELECT DISTINCT profile, NULL FROM runs ORDER BY profile")
tags = _store_completer("SELECT DISTINCT value, NULL FROM run_labels, json_each(tags) ORDER BY value")


def predecessors(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Complete ids of runs; behind a colon, how one may end."""
    if ":" not in incomplete:
        return runs(ctx, parameter, incomplete)
    return _stored_completions(ctx, "SELECT run_id || ':any', state FROM runs ORDER BY sequence DESC", incomplete)


def runs_to_act_on(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete ids of the runs that the command can act on, without those that are typed already."""
    from gputui.runs.selection import REFUSALS, resume_variant
    from gputui.store.runs import read_runs

    options = ctx.params
    verb = str(ctx.command.name)
    if verb == "resume":
        is_forced = bool(options.get("changes") or options.get("force"))
        verb = resume_variant(names_checkpoint=options.get("checkpoint") is not None, is_forced=is_forced)
    refusal = REFUSALS.get(f"{verb} by name", REFUSALS[verb])
    typed = options.get("names") or ()
    with suppress(StoreError, sqlite3.Error), closing(open_reader(_workspace(ctx).database)) as connection:
        runs = [run for run in read_runs(connection) if run.run_id not in typed and refusal(run) is None]
        return _completions([(run.run_id, run.state) for run in runs], incomplete)
    return []


def metrics(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete names of a run's metrics, without those that are typed already."""
    from gputui.store.metrics.queries import metric_names
    from gputui.store.runs import RunLookupError, find_run

    typed = ctx.params.get("names") or ()
    home = _workspace(ctx)
    run = ctx.params.get("run") or _first_argument(ctx)
    with suppress(StoreError, RunLookupError, sqlite3.Error), closing(open_reader(home.database)) as connection:
        names = metric_names(connection, find_run(connection, run).run_id)
        return _completions([(name, None) for name in names if name not in typed], incomplete)
    return []


def metrics_of_profile(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete names of the metrics that the newest run of a study's profile wrote."""
    from gputui.store.metrics.queries import metric_names

    newest = "SELECT run_id FROM runs WHERE profile = ? ORDER BY sequence DESC LIMIT 1"
    profile = Path(_first_argument(ctx)).stem
    with suppress(StoreError, sqlite3.Error), closing(open_reader(_workspace(ctx).database)) as connection:
        row = connection.execute(newest, (profile,)).fetchone()
        if row is not None:
            return _completions([(name, None) for name in metric_names(connection, row[0])], incomplete)
    return []


def gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """Complete indices of GPUs, also behind a comma."""
    before, comma, last = incomplete.rpartition(",")
    items = _stored_completions(ctx, "SELECT position, name FROM gpus WHERE present ORDER BY position", last)
    typed = before.split(",")
    return [CompletionItem(f"{before}{comma}{item.value}", help=item.help) for item in items if item.value not in typed]


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
    return _completions([(name, None) for name in re.findall(r"^([\w.-]+):", text, re.MULTILINE)], incomplete)


def _workspace(ctx: click.Context) -> Workspace:
    return locate(ctx.find_root().params.get("home"), checkout=own_checkout())


def _first_argument(ctx: click.Context) -> str:
    """The first argument before an option whose value is being typed; click has not named it yet."""
    return next(iter(ctx.args), "")


def _stored_completions(ctx: click.Context, query: str, incomplete: str) -> Items:
    """The rows of (value, remark) in the store that begin as typed."""
    with suppress(StoreError, sqlite3.Error), closing(open_reader(_workspace(ctx).database)) as connection:
        return _completions(connection.execute(query).fetchall(), incomplete)
    return []


def _completions(values: Iterable[tuple[object, str | None]], incomplete: str) -> Items:
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
    return _completions([(name, None) for name in names], incomplete) or [CompletionItem(incomplete, type="file")]
