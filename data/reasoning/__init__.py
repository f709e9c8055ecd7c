"""Puzzles with exact rules: drawn by a seed, split by solution, checked by rules and not by one stored answer.

puzzle.py has what all share, one file a puzzle its rules and how it is drawn; build.py makes the data of a run.
"""
