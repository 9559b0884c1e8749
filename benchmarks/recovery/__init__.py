"""Quality of recovery: every kind of incident provoked once, and healthy hours without a false
alarm."""
