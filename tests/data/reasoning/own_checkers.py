"""Checkers of a user's own puzzles."""

from __future__ import annotations


def is_even(puzzle: list[str], answer: list[str]) -> bool:
    """A checker: the answer has an even number of ones."""
    return answer.count("1") % 2 == 0


def is_not_two(puzzle: list[str], answer: list[str]) -> list[bool]:
    return [symbol == "2" for symbol in answer]


def says_maybe(puzzle: list[str], answer: list[str]) -> str:
    return "maybe"
