"""The page of a run: ``page`` is the screen, with charts, sections beside them, and the log."""
