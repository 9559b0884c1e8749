"""Dialogs above a page, each for one question.

In: the subject of the question. Out: the answer, by Textual's ``dismiss``; None if nothing was chosen.
Read ``questions`` first.
"""
