"""From the store to one immutable snapshot.

In: a read-only connection, the time and what the page shown asks for. Out: the `Snapshot` of ``ui.views``, made by one
thread (``feed``) and posted to the app. Read ``reader`` first.
"""
