"""YAML files that people write, as typed forms, or every mistake with its line and a suggestion.
Read `forms` first; `document` defines the supported YAML."""
