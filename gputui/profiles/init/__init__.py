"""Draft a profile from a script or a command. Nothing of it is run or imported.

Read `typed_command.py` and `script_survey.py` (the input), `presets.py` (frameworks), then `draft.py` (the profile).
"""
