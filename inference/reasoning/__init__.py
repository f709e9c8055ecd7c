"""The commands of reasoning: think-curve, solve and verify.

puzzle_runs.py loads runs and their puzzles, thoughts.py lets a model think on them and counts what that costs.
think_curve.py compares steps, candidates and rivals (its tables and picture are in think_curve_report.py), solve.py
shows a puzzle being solved (board.py prints and draws it), verify.py asks whether the energy knows what is right
(answers.py makes wrong answers and has them scored; the report is in verify_report.py).
"""
