"""The pages: a folder each, with the screen (``page``) and what only that page draws and knows.

In: snapshots, keys. Out: lines in panes, command rows, requests for data. Read ``overview/page`` first; the other
folders follow its form, and ``file_list`` is what choosing profiles and studies share. A page is imported when opened.
"""
