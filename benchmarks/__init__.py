"""Reproducible measurements of gputui. ``python -m benchmarks`` takes all of them; benchmarks/README.md says how."""
