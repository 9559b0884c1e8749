"""Alert rules and the engine that evaluates them. Pure: no clock, no I/O.

In: readings of a GPU, the host or a run at one moment. Out: alerts raised and cleared, after durations, hysteresis and
cool-down. `rules` is the table, `measures` and `run_measures` read a value and its limit, `engine` keeps the state,
`overrides` reads what a machine or a profile changes, `resolved_rules` applies it. Read `rules` first. The agent's side
is `gputui.agent.alerts`.
"""
