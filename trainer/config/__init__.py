"""Settings: every one declared once, read from flags, YAML and environment, and unfolded into phases.

In come a command line, files and variables, out come frozen `Settings`, or one line with the place that is wrong.
`schema` declares them, `sources` reads and shows them, `phases` unfolds them, `problems` words errors.
Nothing here imports torch. Read `schema` first.
"""

from trainer.config.phases import phase_at, unfold
from trainer.config.problems import flag
from trainer.config.schema import Settings
from trainer.config.sources import RunMode, as_json, as_plain, from_arguments, json_schema, without_login

__all__ = [
    "RunMode",
    "Settings",
    "as_json",
    "as_plain",
    "flag",
    "from_arguments",
    "json_schema",
    "phase_at",
    "unfold",
    "without_login",
]
