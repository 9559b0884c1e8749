"""Studies: many runs of one profile, to find good parameters. Optuna samples and prunes; the agent
runs the trials.

In: a study's YAML file, or a typed grid. Out: trials in Optuna's journal, their rows, and commands for
the agent. Each trial is an ordinary run. Read `spec.py` first (the definition of a study), then
`decide.py` (pure) and `process.py` (the process that acts).
"""
