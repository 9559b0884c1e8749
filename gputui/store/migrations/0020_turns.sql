-- The longest turn of this agent's loop, and the part that took most of it: while one turn lasts, nothing else is done.
ALTER TABLE agent ADD COLUMN longest_turn_seconds REAL;
ALTER TABLE agent ADD COLUMN longest_turn_part TEXT;
