"""Checks of this machine: readings of host, GPUs and home, and pure judgements of them."""
