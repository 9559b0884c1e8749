"""Reports on finished runs: quality gates, cost, performance, scaling, and one HTML page.

In: `facts` of runs, read once. Out: JSON files and a page that needs no other file. Read `facts`, then `making`.
"""
