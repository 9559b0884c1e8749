-- The newest change of what a checkpoint was before it was written again: files of a folder that are older than that are
-- not written with each save.
ALTER TABLE checkpoints ADD COLUMN before_ns INTEGER;
