"""The watch over live attempts, GPUs and the host: detectors, rules and the engine of alerts. Pure.

In: metrics lines, readings of processes and GPUs, the time. Out: observations, which a rule shows,
makes an alert of, or ends an attempt for. `rules` is the table, `attempt` has the detectors of an
attempt (`activity`, `silence`, `hangs`, `numbers`, `leaks`, and `metric_history` with
`loss_history` and `learning_rate`), `machine` those of GPUs and host, `overrides` a user's
changes to the rules, `engine` the states of alerts. Read `rules` first.
"""
