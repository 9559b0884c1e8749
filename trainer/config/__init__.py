"""Settings: `schema` declares them, `sources` reads them from flags, YAML and environment, `phases` unfolds them."""

from trainer.config.schema import Settings

__all__ = ["Settings"]
