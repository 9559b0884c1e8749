"""The demo: a throw-away machine of simulated GPUs with a past.

In: nothing. Out: a home that the screen opens and that is removed afterwards. `training` is the script that the demo's
runs execute, `past` makes a week of runs with the agent's own code and a clock that was set back, `study` the study
among them, `home` puts all together. Start with `home`.
"""
