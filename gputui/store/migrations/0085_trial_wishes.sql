-- What a person wants of a trial: keep (it is never cut short) or prune (it was cut short by hand); else NULL.
ALTER TABLE trials ADD COLUMN wish TEXT;
