"""The store: one SQLite file that the agent writes and everybody reads.

In: rows from the agent, questions from views. Out: frozen records; every reader answers for now or for a past moment.
`database` opens and migrates, `migrations` define the tables (docs/schema.md); a module per kind of thing has
its records and the questions about it. Read `runs` first.
"""
