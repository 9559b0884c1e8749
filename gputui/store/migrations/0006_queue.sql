-- The order of the queue, and whether it is paused. A higher priority starts earlier.
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;

-- At most one row: who paused the queue, and when. Without it the queue is open.
CREATE TABLE queue_pause (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at REAL NOT NULL,
    actor TEXT NOT NULL
) STRICT;
