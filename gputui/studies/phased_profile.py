"""A member's training as a profile with phases, which repeats it as one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from gputui.profiles.resolve import RUN_DIR
from gputui.runs.spec import Phase, RunSpec, Scalar


class ProfileChangedError(ValueError):
    """The file of a study's profile is no longer a profile. The text names it and the remedy."""


def phased_profile(base: RunSpec, source: str, name: str, fixed: Mapping[str, Scalar], phases: Sequence[Phase]) -> str:
    """A profile's text, ``source``, with the new ``name``, the study's ``fixed`` values and ``phases``, to be read from
    any folder. ``base`` is the specification that the study made of the profile. Raises ProfileChangedError."""
    try:
        data = yaml.safe_load(source)
    except yaml.YAMLError:
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
