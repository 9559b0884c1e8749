"""Lines of styled text that several pages draw: pure functions of a snapshot and a size, without Textual.

In: records of the snapshot, a width. Out: lines of segments whose style keys ``theme`` turns into colours. Read
``columns`` first.
"""
