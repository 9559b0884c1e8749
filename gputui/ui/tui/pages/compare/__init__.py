"""Several runs compared: ``comparison`` is the value, ``view`` draws it, ``page`` is the screen."""
