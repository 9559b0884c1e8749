"""`gputui report`: JSON files and a page about runs.

In: runs of the store with their metrics, samples, incidents and costs. Out: a verdict, figures and,
if asked for, quality gates. Read `report` first.
"""
