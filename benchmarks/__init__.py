"""Speed, memory and quality, measured: `python -m benchmarks NAME` runs one file of this folder.

May import: any room.
"""
