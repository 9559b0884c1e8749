"""The page of one GPU: ``page`` is the screen, ``view`` draws it."""
