"""What the command line and the screen show alike: the rows of a snapshot, their words and their JSON."""
