"""What is reached on puzzles without learning: a guess among what the clues allow, and rules without search.

Both ask the rules of a puzzle one question only: which symbols may a cell have beside the cells that are filled?
"""

from __future__ import annotations

import numpy as np

from data.reasoning.puzzle import IN_DISTRIBUTION, SEVERAL, SHIFTED, Puzzle, PuzzleSet

GUESS, ELIMINATION, SOLVER = "guess among what the clues allow", "filled by elimination", "exact solver"
BLIND_GUESS = "guess among all symbols"
SHARES = {IN_DISTRIBUTION: "solved", SHIFTED: "solved_shifted", SEVERAL: "solved_several"}


def allowed_symbols(puzzle: Puzzle, puzzles: PuzzleSet, board: np.ndarray) -> np.ndarray:
    """Which symbols break no rule that is seen in their own cell, bool [R, N, V]; all of them where each one does.

    board: [R, N], -1 for blank cells; a filled cell allows its own symbol.
    """
    cells, symbols = board.shape[1], len(puzzle.spec.symbols)
    allowed = board[..., None] == np.arange(symbols)
    for cell in range(cells):
        rows = np.flatnonzero((board[:, cell] < 0) & puzzles.real[:, cell])
        if len(rows):
            some, trial = puzzles.rows(rows), board[rows].copy()
            for symbol in range(symbols):
                trial[:, cell] = symbol
                allowed[rows, cell, symbol] = ~puzzle.violations(some, trial)[:, cell]
    none = ~allowed.any(axis=-1)
    allowed[none] = True
    return allowed


def guess_loss(puzzles: PuzzleSet, allowed: np.ndarray) -> float:
    """Nats per blank cell of a guess among what is allowed, of puzzles as in training."""
    blank = (puzzles.given < 0) & puzzles.real & (puzzles.kind == IN_DISTRIBUTION)[:, None]
    return float(np.log(allowed.sum(axis=-1))[blank].mean())


def draw_guess(puzzles: PuzzleSet, allowed: np.ndarray) -> np.ndarray:
    """One of the allowed symbols in each blank cell, [R, N]; the same every time."""
    chances = np.random.RandomState(0).random_sample(allowed.shape)
    return np.where(puzzles.given >= 0, puzzles.given, (allowed * (1 + chances)).argmax(axis=-1))


def eliminate(puzzle: Puzzle, puzzles: PuzzleSet) -> np.ndarray:
    """The board that is left when cells with one allowed symbol are filled until there are none, [R, N]."""
    board = puzzles.given.astype(np.int64)
    open_rows = np.arange(len(puzzles))
    while len(open_rows):
        some, part = puzzles.rows(open_rows), board[open_rows]
        allowed = allowed_symbols(puzzle, some, part)
        single = (part < 0) & some.real & (allowed.sum(axis=-1) == 1)
        board[open_rows] = np.where(single, allowed.argmax(axis=-1), part)
        open_rows = open_rows[single.any(axis=1)]
    return board


def solved_shares(puzzle: Puzzle, puzzles: PuzzleSet, board: np.ndarray) -> dict[str, float]:
    """The share of puzzles that a board solves, by the measure of their kind."""
    solved = puzzle.solved(puzzles, board)
    kinds = {name: puzzles.kind == kind for kind, name in SHARES.items()}
    return {name: float(solved[rows].mean()) for name, rows in kinds.items() if rows.any()}


def puzzle_references(puzzle: Puzzle, puzzles: PuzzleSet) -> dict[str, dict[str, float]]:
    """Measures of what needs no learning, by its name; the first is what a model must beat."""
    allowed = allowed_symbols(puzzle, puzzles, puzzles.given)
    # Rules that compare each cell with the answer, as in a graph or a sum, tell it: that is no guess.
    tell_the_answer = (allowed.sum(axis=-1) == 1)[(puzzles.given < 0) & puzzles.real].all()
    allowed = allowed | tell_the_answer
    guess = solved_shares(puzzle, puzzles, draw_guess(puzzles, allowed))
    references = {(BLIND_GUESS if tell_the_answer else GUESS): guess | {"loss": guess_loss(puzzles, allowed)}}
    if not tell_the_answer:
        references[ELIMINATION] = solved_shares(puzzle, puzzles, eliminate(puzzle, puzzles))
    return references | {SOLVER: dict.fromkeys(guess, 1.0)}
