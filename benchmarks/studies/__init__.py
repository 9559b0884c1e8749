"""Costs and findings of studies: ``python -m benchmarks.studies``.

`parts` has a function for each row of the table and `rows` their goals; `planted` and `moving` are trainings whose best
is known; `peers` does the same search with gputui, with Optuna and a subprocess per trial, and with Ray Tune.
"""
