"""What every room may use: where things are, redaction, safe text, units and YAML."""
