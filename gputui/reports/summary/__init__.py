"""Reports on runs: quality gates, cost, performance, scaling, and one HTML page.

In: `facts` of runs, read once. Out: JSON files and a self-contained page. Read `facts`, then `report`.
"""
