"""Answers to the commands of views: one function per verb. Read `dispatch.py` first.

In: pending rows of the table `commands`. Out: the same rows, `done` with a result or `refused` with
a reason, and what the verb changed, in one transaction.
"""
