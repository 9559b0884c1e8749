"""Settings: `schema` declares them, `sources` reads them from flags, YAML and environment, `phases` unfolds them."""

from trainer.config.export import as_json, as_plain, json_schema, without_login
from trainer.config.phases import phase_at, unfold
from trainer.config.problems import flag, nearest
from trainer.config.schema import SHAPE_SETTINGS, TASK_DEFAULTS, Settings
from trainer.config.sources import Action, from_arguments

__all__ = [
    "SHAPE_SETTINGS",
    "TASK_DEFAULTS",
    "Action",
    "Settings",
    "as_json",
    "as_plain",
    "flag",
    "from_arguments",
    "json_schema",
    "nearest",
    "phase_at",
    "unfold",
    "without_login",
]
