"""Metrics of a program that nobody has described, learned from the lines that it prints.

In: lines of output, one after another. Out: records by step, and `LearnedState`, which goes on after a restart.
`whole_lines` strips what loggers write and joins the lines of a box or a dictionary, `tokens` reads a line as words and
numbers, `columns` names the numbers, `words` says what a name means. `candidates` collects lines of one shape,
`column_values` are the numbers of one column in them, `counting` finds the step and the epoch among these, `evidence`
the metrics, `learner` tries all others, `shapes` reads the lines of a learned shape, and `positions` say where in which
training they are. Read `lines` first.

A name is the words before a number, joined by ``_``, those in capitals in lower case: ``Acc@1`` is ``acc@1``, ``lm
loss`` is ``lm_loss`` (a single letter stays: ``L``). A word of its own for a part of the data stands before it:
``val/loss`` of "val loss" and "Validation loss", ``train/loss`` of "Train Loss". Where a name has none, that of the
words before it is taken: ``test/loss`` of "Test set: Average loss" (``average`` and ``mean`` go); ``train`` only in
lines that have another part too. A name such as ``eval_loss`` or ``train/CrossEntropy`` stays as it is. Times, rates,
memory, sizes, other counters and the best of several are left out. What is not sure is not stored.
"""

from gputui.metrics.learning.learned_state import LearnedState
from gputui.metrics.learning.lines import LearnedLines

__all__ = ["LearnedLines", "LearnedState"]
