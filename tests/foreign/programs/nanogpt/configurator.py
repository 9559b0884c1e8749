"""Poor Man's Configurator: --key=value overrides a global of the script that executes this."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    assert arg.startswith("--"), arg
    key, val = arg.split("=")
    key = key[2:]
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        attempt = literal_eval(val)
    except (SyntaxError, ValueError):
        attempt = val
    assert type(attempt) is type(globals()[key]), key
    print(f"Overriding: {key} = {attempt}")
    globals()[key] = attempt
