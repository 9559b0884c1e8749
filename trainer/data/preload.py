"""Imported by the fork server of the reading processes only, so that their imports happen once.

The server must survive a SIGTERM to the process group, because the rank then finishes its step. It ends with the rank.
"""

import signal

import trainer.data.reading  # noqa: F401

signal.signal(signal.SIGTERM, signal.SIG_IGN)
