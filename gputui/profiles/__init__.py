"""Profiles: how a person describes a training.

In: a YAML file, the changes of a launch, the machine's GPUs. Out: a `RunSpec`, or every mistake
with its line and the nearest valid key; the checks before a launch; a first draft of a profile from
a script (`draft`). `schema` has one field for each key, `crosscheck` compares keys, `preflight`
finds what would fail at a launch. Read `profile_file` first, then `resolve`.
"""
