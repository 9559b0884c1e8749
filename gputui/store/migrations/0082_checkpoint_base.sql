-- The newest attempt that began from a checkpoint, which may have another path by the end of that attempt.
ALTER TABLE checkpoints ADD COLUMN base_of INTEGER;
