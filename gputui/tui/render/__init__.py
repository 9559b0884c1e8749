"""What the panes show, as lines of styled text: pure functions of a snapshot and a size, without Textual."""
