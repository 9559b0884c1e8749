"""What opens above a page, asks one thing and closes.

In: a question and what it is about. Out: the answer, by Textual's ``dismiss``; None where nothing was chosen. Read
``confirm`` first.
"""
