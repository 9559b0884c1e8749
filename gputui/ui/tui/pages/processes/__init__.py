"""The page of processes: ``page`` is the screen, ``view`` orders, groups and draws."""
