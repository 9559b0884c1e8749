"""The screen, the command line and the demonstration."""
