"""Measurements of the trainer, ``python -m benchmarks.trainer``. They need what the trainer needs, and not gputui."""
