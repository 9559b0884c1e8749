"""Building blocks of pages and dialogs.

In: lines of styled text, keys. Out: widgets and screens. ``Pane`` draws lines; ``ActionScreen`` (``page``) binds
the table of actions to keys, ``ListPage`` adds a cursor and a filter, ``ListingPage`` draws a list,
``ChartController`` carries out what keys do to charts, ``Dialog`` asks one thing. Read ``pane`` first, then ``page``.
"""
