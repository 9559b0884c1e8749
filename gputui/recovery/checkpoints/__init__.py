"""Checkpoints of runs: what lies in their folders, whose it is, and which one the next attempt may resume from."""
