"""The page of a study: its trials, the best of them, and what mattered."""
