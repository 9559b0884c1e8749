"""Executors: where an attempt runs. Each is a program that keeps the attempt contract (docs/attempts.md).

In comes an attempt's folder with its attempt.json; out come the files of the contract, until exit.json says how it
ended. The agent starts the program, signals it and, where it may, replaces it; it knows nothing else of it.
Read first: base.py, then process.py.
"""
