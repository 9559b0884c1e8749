"""Several runs beside each other: ``comparison`` is the value, ``view`` draws it, ``page`` is the screen."""
