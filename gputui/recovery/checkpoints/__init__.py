"""Checkpoints: what lies in a run's folder, whose it is, and what may be resumed from."""
