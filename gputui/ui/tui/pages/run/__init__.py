"""The page of a run: ``page`` is the screen; the charts are left, the sections that explain them right."""
