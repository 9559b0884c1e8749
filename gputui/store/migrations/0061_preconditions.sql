-- What the next attempt waits for, under the name that it has everywhere else.
ALTER TABLE next_attempts RENAME COLUMN gates TO preconditions;
