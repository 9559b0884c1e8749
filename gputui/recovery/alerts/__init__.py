"""Alert rules and the engine that evaluates them. Pure: no clock, no I/O.

In: readings of a GPU, the host or a run at one moment. Out: alerts that are raised and cleared, with durations,
hysteresis and cool-down. `rules` is the table, `measures` and `run_measures` read a value and its limit, `engine` keeps
the state, `overrides` reads the changes of a machine or a profile, `resolved_rules` applies them. Read `rules` first.
The agent's side is `gputui.agent.alerts`.
"""
