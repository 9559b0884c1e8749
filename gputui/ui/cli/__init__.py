"""The command line: one module per command, imported when it is called.

In: words typed in a shell. Out: text or JSON on standard output, one line on standard error, a
documented exit code. `main` has the table of commands; `context` has what they share: the
workspace, the store, questions to the agent, exit codes. Read `main` first; `ps` is the smallest
complete example.
"""
