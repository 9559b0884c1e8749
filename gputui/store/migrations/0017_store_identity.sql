-- Which store this is. One that is begun anew, after a loss, numbers its rows from 1 again: who keeps a row's number
-- outside of it keeps the identity too.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    identity TEXT NOT NULL
) STRICT;

INSERT INTO store (id, identity) VALUES (1, lower(hex(randomblob(16))));
