"""The demo: a temporary home with simulated GPUs and a week of history.

In: nothing. Out: a home for the screen, removed afterwards. `simulated_trainer` is the script of
the demo's runs, `stories` what happened to them, `past` makes the history with the agent's own code
and a clock that was set back, `study` the study in it, `home` creates the home. Read `home` first.
"""
