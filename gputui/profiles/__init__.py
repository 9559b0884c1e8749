"""Profiles: how a person says what is trained.

In: a YAML file, what the launch changes, the machine's GPUs. Out: a `RunSpec`, or every mistake with its line and the
nearest valid key; the checks before a launch; a first draft of a profile from a script (`draft`).
`schema` is one field for each key, `crosscheck` what is wrong between keys, `preflight` what can fail before a launch.
Read first: loading.py, then resolve.py.
"""
