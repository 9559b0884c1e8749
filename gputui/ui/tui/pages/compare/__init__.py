"""Several runs compared: ``comparison`` is the value and its table, ``page`` is the screen."""
