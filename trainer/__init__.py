"""A complete, small trainer for data-parallel training, run as ``python -m trainer``.

Reading order: ``config.schema`` (every setting), ``__main__`` (exit codes), ``run`` (phases), ``loop`` (steps),
``session`` and ``parallel.ddp``, and then the parts that these use, each on its own: ``data``, ``tasks``, ``models``,
``optim``, ``checkpoints``, ``telemetry``, ``signals``.
"""
