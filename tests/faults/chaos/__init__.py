"""Chaos: runs of several kinds at once while processes of every kind are killed, stopped and continued, runs are
launched, resumed, restarted and removed at any moment, and the disk is full for a while.

``make chaos`` runs it for minutes; tests/faults/test_chaos.py for seconds. Whatever was done, afterwards every run has
succeeded or was ended by its policy, every metrics line is stored exactly once, no attempt went on from a checkpoint of
another lineage, every launch that was accepted made one run and every other none, nothing is left of a removed run, the
database is intact, and no process and no lease is left. `studies` does the same to a study: each trial keeps its point
and its run, and has one verdict.
"""

from tests.faults.chaos.drill import Chaos

__all__ = ["Chaos"]
