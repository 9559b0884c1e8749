"""From the store to one immutable snapshot.

In: a read-only connection, the time and what the page shown asks for. Out: ``Snapshot``, made by one thread (``feed``)
and posted to the app. Read ``snapshot`` first, then ``reader``.
"""
