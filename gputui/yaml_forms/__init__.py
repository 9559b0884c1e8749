"""The YAML files that people write, as typed forms.

In: a file's text and a pydantic form. Out: the valid form, or every mistake at once, each with its line and the nearest
right word. Profiles, studies, alert rules, the record's settings and scenarios are read by it. Read `forms` first;
`document` says what of YAML is understood.
"""
