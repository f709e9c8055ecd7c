"""reachability:N: which of N nodes can be reached from the source of an undirected graph.

Undirected, so that the bits of a cell name all neighbours that its answer depends on. A graph has two parts: the
source is the root of one, and the nodes are relabelled at random. In training both parts are drawn in the same way:
but for the mark of the source they are exchangeable, and no count of edges tells which nodes are reached.

Kinds: the eccentricity of the source, which is the number of steps to the farthest node that it reaches, is small in
distribution (2 to 4 for 16 nodes) and large in the shifted rows (6 to 9), whose other part is as a rule shallower.
Splits: by a hash that no relabelling of the nodes changes.
"""

from __future__ import annotations

import re

import numpy as np

from core.errors import UserError
from data.reasoning.puzzle import (
    IN_DISTRIBUTION,
    Puzzle,
    PuzzleSet,
    PuzzleSpec,
    Split,
    mix,
    permutations,
)

DRAW_NUMBERS = 1 << 20  # pairs of nodes in the graphs that are drawn at once
ROUNDS = 4  # of colour refinement; the hash need not tell all graphs apart, only be equal for equal ones


class Reachability(Puzzle):
    """Cells are nodes. Fields: a bit for the edge to each node, and whether a node is the source."""

    def __init__(self, nodes: int) -> None:
        self.nodes = self.columns = nodes
        self.spec = PuzzleSpec(
            f"reachability:{nodes}", nodes, ("-", "+"), (2,) * (nodes + 1), np.arange(nodes, dtype=np.int64)[None]
        )
        self.eccentricity = {0: (2, max(2, nodes // 4)), 1: (max(3, 3 * nodes // 8), nodes // 2 + 1)}

    def draw(self, split: Split, kind: int, random: np.random.RandomState, seed: int) -> PuzzleSet:
        count, nodes = max(64, min(4096, DRAW_NUMBERS // self.nodes**2)), self.nodes
        low, high = self.eccentricity[kind]
        draws = random.random_sample((3, count, 1))
        if kind == IN_DISTRIBUTION:
            source_size = between(draws[0], low + 1, nodes - low - 1)
            source_farthest = between(draws[1], low, np.minimum(high, source_size - 1))
        else:
            source_farthest = between(draws[1], low, high)
            size = np.maximum(source_farthest + 1, np.minimum(source_farthest + 3, nodes - 4))
            source_size = between(draws[0], source_farthest + 1, size)
            low = 2  # of the other part, since two long parts leave hardly any choice
        rest = nodes - source_size
        other_farthest = between(draws[2], np.minimum(low, rest - 1), np.minimum(high, rest - 1))
        node = np.arange(nodes)[None]
        part = (node >= source_size).astype(np.int64)  # [R, N]
        place = np.where(part == 0, node, node - source_size)
        farthest = np.where(part == 0, source_farthest, other_farthest)
        # The first nodes of a part are a shortest path to its farthest; the others have any distance from its root.
        depth = np.where(place <= farthest, place, 1 + (random.random_sample(part.shape) * farthest).astype(np.int64))
        same = part[:, :, None] == part[:, None, :]
        step = depth[:, :, None] - depth[:, None, :]
        noise = random.random_sample(same.shape)
        parent = np.where(same & (step == 1), noise, -1).argmax(axis=2)  # [R, N]; meaningless for roots
        edges = (parent[:, :, None] == node[:, None]) & (depth > 0)[:, :, None]
        share = random.random_sample((count, 1, 1)) / 3
        edges |= same & (abs(step) <= 1) & (random.random_sample(same.shape) < share / 2)
        edges |= edges.transpose(0, 2, 1)
        edges &= ~np.eye(nodes, dtype=bool)
        source = (part == 0) & (depth == 0)
        order = permutations(random, count, nodes)
        edges = np.take_along_axis(np.take_along_axis(edges, order[:, :, None], 1), order[:, None, :], 2)
        return self.puzzles(edges, np.take_along_axis(source, order, 1), kind)

    def puzzles(self, edges: np.ndarray, source: np.ndarray, kind: int) -> PuzzleSet:
        """edges: bool [R, N, N]; source: bool [R, N]."""
        inputs = np.concatenate([edges, source[:, :, None]], axis=2).astype(np.uint8)
        shape = source.shape
        answer = self.reached(inputs).astype(np.int8)
        kinds = np.full(len(inputs), kind, np.int8)
        return PuzzleSet(inputs, np.full(shape, -1, np.int8), answer, np.ones(shape, bool), kinds)

    def reached(self, inputs: np.ndarray) -> np.ndarray:
        """bool [R, N]. inputs: [R, N, N + 1]."""
        edges, reached = inputs[:, :, :-1].astype(np.float32), inputs[:, :, -1] > 0
        while True:
            further = reached | (np.matmul(edges, reached[:, :, None].astype(np.float32))[:, :, 0] > 0)
            if (further == reached).all():
                return further
            reached = further

    def split_key(self, puzzles: PuzzleSet) -> np.ndarray:
        edges, colours = puzzles.inputs[:, :, :-1].astype(bool), mix(puzzles.inputs[:, :, -1])
        for _ in range(ROUNDS):
            around = np.where(edges, mix(colours)[:, None, :], np.uint64(0)).sum(axis=2, dtype=np.uint64)
            colours = mix(colours + mix(around))
        return mix(colours.sum(axis=1, dtype=np.uint64))

    def violations(self, puzzles: PuzzleSet, answer: np.ndarray) -> np.ndarray:
        """Nodes with the wrong answer."""
        wrong = answer != self.reached(puzzles.inputs)
        return self.clue_violations(puzzles, answer) | (wrong & puzzles.real)

    def parse(self, text: str) -> PuzzleSet:
        """`3: 0-1 1-3 2-4`: the source, then the edges; nodes count from 0."""
        usage = f"write the source and the edges of nodes 0 to {self.nodes - 1}, as 3: 0-1 1-3"
        match = re.fullmatch(r"\s*(\d+)\s*:((?:\s*\d+\s*-\s*\d+[\s,]*)*)\s*", text, re.ASCII)
        if match is None:
            raise UserError(f"--puzzle is {text.strip()[:60]!r}: {usage}.")
        pairs = [(int(a), int(b)) for a, b in re.findall(r"(\d+)\s*-\s*(\d+)", match[2], re.ASCII)]
        for number in (int(match[1]), *(number for pair in pairs for number in pair)):
            if number >= self.nodes:
                raise UserError(f"--puzzle has node {number}: {usage}.")
        edges = np.zeros((1, self.nodes, self.nodes), bool)
        for a, b in pairs:
            if a == b:
                raise UserError(f"--puzzle has an edge from node {a} to itself: {usage}.")
            edges[0, a, b] = edges[0, b, a] = True
        source = (np.arange(self.nodes) == int(match[1]))[None]
        return without_answer(self.puzzles(edges, source, IN_DISTRIBUTION))

    def text(self, puzzles: PuzzleSet, row: int) -> str:
        edges = np.argwhere(np.triu(puzzles.inputs[row, :, :-1]))
        return f"{puzzles.inputs[row, :, -1].argmax()}: " + " ".join(f"{a}-{b}" for a, b in edges)

    def lines(self, puzzles: PuzzleSet, row: int, answer: np.ndarray | None = None) -> list[str]:
        """A line for each node: whether it is reached, and its neighbours; * marks the source."""
        lines = []
        for node, symbol in enumerate(self.cell_texts(puzzles, row, answer)):
            bits = puzzles.inputs[row, node]
            neighbours = " ".join(map(str, np.flatnonzero(bits[:-1])))
            lines.append(f"{symbol} {node:2}{'*' if bits[-1] else ' '} {neighbours}".rstrip())
        return lines

    def answers(self, puzzles: PuzzleSet, row: int, most: int = 2) -> list[np.ndarray]:
        return [self.reached(puzzles.inputs[row : row + 1])[0].astype(np.int64)][:most]


def between(draw: np.ndarray, low: np.ndarray | int, high: np.ndarray | int) -> np.ndarray:
    """Integers from low to high. draw: uniform from 0 to 1."""
    return (low + np.floor(draw * (np.asarray(high) - low + 1))).astype(np.int64)


def without_answer(puzzles: PuzzleSet) -> PuzzleSet:
    """The same puzzles, as if nobody had solved them."""
    puzzles.answer[:] = -1
    return puzzles
