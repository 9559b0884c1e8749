"""The page of alerts."""
