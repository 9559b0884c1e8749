"""Settings: every one declared once, read from flags, YAML and environment, and unfolded into phases.

Nothing here imports torch. Read `schema` first.
"""

from trainer.config.phases import phase_at, unfold
from trainer.config.schema import Settings, flag
from trainer.config.sources import as_file, from_arguments, json_schema

__all__ = ["Settings", "as_file", "flag", "from_arguments", "json_schema", "phase_at", "unfold"]
