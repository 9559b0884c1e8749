"""The page of processes: ``page`` is the screen, ``rows`` orders and groups, ``view`` draws."""
