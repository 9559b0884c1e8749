"""Studies: many runs of one profile, one question. Optuna samples and prunes, the agent runs.

In: a study's YAML file, or the points of ``gputui sweep``. Out: rows of ``trials`` and commands for the agent. Each
trial is an ordinary run. First read `spec.py` (what a study is), then `decide.py` (pure) and `process.py` (the process
that acts).
"""
