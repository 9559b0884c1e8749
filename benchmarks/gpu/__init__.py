"""One command for a machine with a GPU and no network: ``python -m benchmarks.gpu``.

`models` and `bare` need torch alone; the trainer's parts need its few libraries as well, and the parts of gputui those
of gputui: from the environment, or from a folder of wheels that `wheels` packs elsewhere. Read `parts` first.
"""
