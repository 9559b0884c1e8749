"""The errors that are meant for a person: one line on stderr and an exit code, never a traceback."""


class TrainerError(Exception):
    """Training cannot go on; the message says what, where and what to do next."""

    exit_code = 1


class SettingsError(TrainerError):
    """A setting is missing, unknown or out of range."""

    exit_code = 2


class CheckpointError(TrainerError):
    """A checkpoint is missing, damaged or does not fit this model."""
