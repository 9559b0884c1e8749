"""Settings for others to read: checkpoints, people and editors."""

from __future__ import annotations

import json
import re
from typing import Any

from trainer.config.phases import RUN_WIDE
from trainer.config.schema import SWITCHES, Settings

_FACTOR = {"type": "string", "pattern": "^x[0-9.]+$", "description": "a share of the run's own value, such as x0.5"}


def as_plain(settings: Settings) -> dict[str, Any]:
    """All settings as numbers, text, lists and dictionaries, for checkpoints and trackers. `Settings` takes it back.

    Without the name and password that a tracking URI may hold: checkpoints are passed on to others.
    """
    return settings.model_dump(mode="json") | {"mlflow": without_login(settings.mlflow)}


def without_login(uri: str) -> str:
    """A URI without ``name:password@``."""
    return re.sub(r"(?<=://)[^/]*@", "", uri)


def as_json(settings: Settings) -> str:
    """All settings as indented JSON, which ``--config`` reads back."""
    return json.dumps(settings.model_dump(mode="json"), indent=2)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a settings file, with descriptions, for editors that complete and check YAML."""
    schema = Settings.model_json_schema()
    settings: dict[str, Any] = schema["properties"]
    del settings["phase"]
    for setting in settings.values():
        setting.pop("title", None)
    for name in SWITCHES:
        del settings[name]["type"]
        settings[name]["enum"] += [True, False]
    settings["inject"]["anyOf"] = [{"type": "string"}, {"type": "array", "items": settings["inject"].pop("items")}]
    del settings["inject"]["type"]
    overrides = {name: _or_share(setting) for name, setting in settings.items() if name not in RUN_WIDE}
    settings["phases"]["items"] = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "used in metrics and file names"}, **overrides},
        "required": ["name", "steps"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Settings of python -m trainer",
    }


def _or_share(setting: dict[str, Any]) -> dict[str, Any]:
    """A setting as a phase may give it: numbers also as a share."""
    kinds = setting.get("anyOf", [setting])
    if not any(kind.get("type") in ("integer", "number") for kind in kinds):
        return setting
    outer = ("description", "default")
    inner = [{key: value for key, value in kind.items() if key not in outer} for kind in kinds]
    return {"description": setting["description"], "anyOf": [*inner, _FACTOR]}
