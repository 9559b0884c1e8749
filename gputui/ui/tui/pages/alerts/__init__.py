"""The page of alerts: ``page`` is the screen; its table is ``layout.alerts``, shared with the overview."""
