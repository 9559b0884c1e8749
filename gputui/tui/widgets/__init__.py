"""What pages and dialogs are made of.

In: lines of styled text, keys. Out: Textual widgets and screens: ``Pane`` draws the lines, ``ActionScreen`` binds the
table of actions to keys. Read ``pane`` first, then ``page``.
"""
