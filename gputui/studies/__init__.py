"""Studies: many runs of one profile, to find good parameters. Optuna samples and prunes; the agent runs the trials.

In: a study's YAML file, or the values of a grid. Out: rows of ``trials`` and commands for the agent. Each
trial is an ordinary run. Read `spec.py` first (the definition of a study), then `decide.py` (pure) and `process.py`
(the process that acts).
"""
