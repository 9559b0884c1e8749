"""The page of one GPU."""
