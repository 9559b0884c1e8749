"""The errors that are meant for a person: one line on stderr and an exit code, never a traceback."""


class TrainerError(Exception):
    """Training cannot go on; the message says what, where and what to do next."""

    exit_code = 1


class SettingsError(TrainerError):
    """A setting is missing, unknown or out of range."""

    exit_code = 2


class RankError(TrainerError):
    """Something that one rank has met and the others know nothing of, such as data that it could not read."""


class CheckpointError(TrainerError):
    """A checkpoint is missing, damaged or does not fit this model."""
