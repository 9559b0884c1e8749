"""The overview: ``page`` is the screen, ``selection`` its cursor; the other files draw one area each."""
