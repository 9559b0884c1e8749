"""A complete, small trainer for data-parallel training, run as ``python -m trainer``.

Reading order: ``config`` (every setting), ``__main__`` (exit codes), ``loop`` (the training itself), and then the parts
that the loop uses, each on its own: ``data``, ``models``, ``optim``, ``distributed``, ``checkpoint``, ``emit``,
``faults``, ``signals``.
"""
