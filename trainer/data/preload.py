"""Imported by the fork server of the reading processes, and by nothing else: what they need is imported just once.

The server must outlive a SIGTERM to the whole process group, after which the rank finishes its step; it ends with it.
"""

import signal

import trainer.data.workers  # noqa: F401

signal.signal(signal.SIGTERM, signal.SIG_IGN)
