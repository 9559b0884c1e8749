"""YAML files that people write, as typed forms.

In: a file's text and a pydantic form. Out: the valid form, or every mistake with its line and a
suggestion. Used for profiles, studies, alert rules, the settings of the record and scenarios. Read
`forms` first; `document` defines the supported YAML.
"""
