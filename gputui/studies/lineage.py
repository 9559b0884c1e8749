"""The training of a population's member, with the parts of its donors' that it continued: as phases
of a profile."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import yaml

from gputui.core.yaml_forms.file import parse_file
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.resolve import RUN_DIR
from gputui.profiles.schema import is_literal
from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.spec import Phase, RunSpec, Scalar
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.studies import TrialRecord
from gputui.studies.population import segments_of


class LineageError(Exception):
    """The training of a member is unknown. The text says why."""


def lineage(connection: sqlite3.Connection, trials: Sequence[TrialRecord], number: int) -> list[Phase]:
    """The phases of a member's training from its first step, including those in its donors' runs.

    ``trials`` are all trials of the study; ``trials[number]`` is the member. Raises LineageError if
    a run was removed, a checkpoint has no step or the stored parts are inconsistent; sqlite3.Error.
    """
    phases: list[Phase] = []  # the newest first
    seen: set[tuple[int, int]] = set()
    trial = _trial(trials, number)
    last_attempt: int | None = None  # None for the newest
    until: int | None = None
    while True:
        begun = [one for one in segments_of(trial) if last_attempt is None or one.attempt <= last_attempt]
        segment = begun[-1] if begun else None  # None for the first part
        first = _attempt(connection, trial, 1 if segment is None else segment.attempt)
        if (trial.number, first.number) in seen:
            raise LineageError(f"the lineage of trial {number} leads back to itself")
        seen.add((trial.number, first.number))
        phases.append(Phase(until, {name: first.params[name] for name in trial.params if name in first.params}))
        if segment is None:
            break
        if segment.donor is None:
            donor, last_attempt, until = trial, segment.attempt - 1, _resumed_step(first)
        else:
            donor, last_attempt, until = _trial(trials, segment.donor), segment.donor_attempt, segment.step
        if until is None:
            raise LineageError(f"the checkpoint that trial {trial.number} went on from has no step in its name")
        trial = donor
    phases.reverse()
    ends = [phase.until for phase in phases if phase.until is not None]
    if any(later <= earlier for earlier, later in itertools.pairwise(ends)):
        raise LineageError(f"trial {number} went back behind a checkpoint that it had gone on from")
    return phases


def _trial(trials: Sequence[TrialRecord], number: int) -> TrialRecord:
    if number >= len(trials):
        raise LineageError(f"trial {number}, which is of this lineage, is not known")
    return trials[number]


def _attempt(connection: sqlite3.Connection, trial: TrialRecord, number: int) -> Attempt:
    attempts = [] if trial.run_id is None else read_attempts(connection, trial.run_id)
    if not attempts:
        raise LineageError(f"the run of trial {trial.number}, which is of this lineage, was removed")
    attempt = next((attempt for attempt in attempts if attempt.number == number), None)
    if attempt is None:
        raise LineageError(f"attempt {number} of {trial.run_id} is not known")
    return attempt


def _resumed_step(attempt: Attempt) -> int | None:
    """The step of the checkpoint that an attempt resumed from."""
    named = None if attempt.resumed_from is None else explicit_step(PurePath(attempt.resumed_from).name)
    return attempt.resumed_step if named is None else named


class ProfileChangedError(ValueError):
    """The file of a study's profile is no longer a profile. The text names it and the remedy."""


def phased_profile(base: RunSpec, source: str, name: str, fixed: Mapping[str, Scalar], phases: Sequence[Phase]) -> str:
    """A profile's text, ``source``, with the new ``name``, the study's ``fixed`` values and
    ``phases``, to be read from any folder. ``base`` is the specification that the study made of the
    profile. Raises ProfileChangedError."""
    try:
        # As a profile is read, which keeps 1.10 and yes in env as they are written.
        data = parse_file(source, Path(base.profile_path or ""), is_literal).data
    except ProfileError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("params") or {}, dict):
        raise ProfileChangedError(f"{base.profile_path} has changed and is no profile; gputui check names the line")
    data["name"] = name
    if "script" in data:
        data["script"] = base.program[0]
    if base.workdir != RUN_DIR:
        data["workdir"] = base.workdir
    if "python" in data:
        data["python"] = base.python
    params = data["params"] = dict(data.get("params") or {})
    for key, value in fixed.items():
        params[key] = {**params[key], "default": value} if isinstance(params.get(key), dict) else value
    data["phases"] = [
        {**({} if phase.until is None else {"until": phase.until}), "params": dict(phase.params)} for phase in phases
    ]
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=150)
