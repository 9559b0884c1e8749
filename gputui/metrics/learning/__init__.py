"""Metrics of a program that nobody has described, learned from the lines that it prints.

In: lines of output, one after another. Out: records by step, and `Learned`, which goes on after a restart. `tokens`
reads a line as words and numbers, `words` says what a name means, `blocks` joins the lines of a box or a dictionary,
`evidence` finds the step and the metrics in several lines of one shape, `shapes` reads the lines of a learned shape.
Read `lines` first.

A name is the words before a number in lower case, joined by ``_``: ``Acc@1`` is ``acc@1``, ``lm loss`` is ``lm_loss``
(a single letter stays: ``L``). A word of its own for a part of the data stands before it: ``val/loss`` of "val loss"
and "Validation loss", ``train/loss`` of "train loss". Where a name has none, that of the words before it is taken:
``test/loss`` of "Test set: Average loss" (``average`` and ``mean`` go); ``train`` only in lines that have another
part too. A name such as ``eval_loss`` stays as it is. Times, rates, memory, sizes, other counters and the best of
several are left out. What is not sure is not stored.
"""

from gputui.metrics.learning.lines import Learned, LearnedLines

__all__ = ["Learned", "LearnedLines"]
