"""What an upgrade must keep: the homes, commands, JSON keys and actions of former versions."""
