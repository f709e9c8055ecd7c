"""`python -m inference solve`: a puzzle solved step by step, printed and drawn, and judged by the rules."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from config.flags import SettingsError
from config.settings import Inference
from core.errors import UserError
from core.files import write_atomically
from core.progress import print_note
from core.text import join_words, plural
from data.reasoning.puzzle import SHIFTED, Puzzle, PuzzleSet
from inference.loading import ModelFlags, output_folder
from inference.reasoning.puzzle_runs import PuzzleRun, blank_cells, load_puzzle_run, on_device, sample_puzzles
from inference.reasoning.thoughts import candidate_seed, confidence_of, measure_thinking
from inference.think_curve import wrap
from tasks.reasoning_commands import SolveFlags
from tasks.show.board import Board, draw_gif, draw_png, side_by_side

REFERENCE_ROWS = 64  # of each kind, whose end energies a puzzle's is compared with
NEAREST = 64  # of these, those with about as many blank cells
MOST_PLACES = 8  # cells named in a sentence


@dataclass(frozen=True)
class Walk:
    """The thoughts of one puzzle. candidate: the one of lowest energy, whose answers [T, N], numbers of steps, energies
    (or, without an energy, confidences) these are. ends: the energy of each candidate; solved: whether it is right."""

    candidate: int
    steps: list[int]
    answers: np.ndarray
    beliefs: np.ndarray
    ends: list[float]
    solved: list[bool]


@dataclass(frozen=True)
class Reference:
    """End energies (or confidences) of validation puzzles, and how many blank cells they have, [R]."""

    beliefs: np.ndarray
    blanks: np.ndarray

    def nearest(self, blanks: int) -> Reference:
        order = np.argsort(np.abs(self.blanks - blanks), kind="stable")[:NEAREST]
        return Reference(self.beliefs[order], self.blanks[order])


def main(model: ModelFlags, command: SolveFlags, inference: Inference) -> int:
    if command.puzzle is not None and command.puzzle_file is not None:
        raise SettingsError(["--puzzle and --puzzle_file are both given: each says what to solve; remove one of them."])
    run = load_puzzle_run(model)
    puzzles = read_puzzles(run, command)
    folder = output_folder(run.loaded, inference)
    print_note(f"{run.title}, step {run.loaded.step}: {run.loaded.checkpoint}")
    candidates = command.candidates
    if not run.has_energy and candidates > 1:
        print_note("This model has no energy and no start to draw: one candidate.")
        candidates = 1
    console = Console(file=sys.stdout, highlight=False)
    reference = solved_reference(run, command.steps if run.thinks else 1)
    count = len(puzzles)
    num_solved = 0
    for row in range(count):
        name = "solve" if count == 1 else f"solve_{row + 1:0{len(str(count))}}"
        walk = think(run, puzzles.rows([row]), command.steps, candidates, model.seed)
        num_solved += walk.solved[walk.candidate]
        show(run, puzzles.rows([row]), walk, reference, command, console, f"PUZZLE {row + 1} of {count}" * (count > 1))
        if row < command.pictures:
            print(f"drawn in {draw(run, puzzles.rows([row]), walk, folder, name)}")
    if count > 1:
        print(f"{num_solved} of {plural(count, 'puzzle')} solved.")
    return 0


def read_puzzles(run: PuzzleRun, command: SolveFlags) -> PuzzleSet:
    """The puzzles of --puzzle or --puzzle_file; without both a harder one of the validation split."""
    if command.puzzle is not None:
        return run.puzzle.parse(command.puzzle)
    if command.puzzle_file is not None:
        return read_file(run.puzzle, command.puzzle_file)
    puzzles = sample_puzzles(run, "valid", 1)
    print_note("--puzzle is missing: a puzzle of the validation split.")
    return puzzles.rows([int((puzzles.kind == SHIFTED).argmax())])


def read_file(puzzle: Puzzle, path: str) -> PuzzleSet:
    """A puzzle a line; all lines that are wrong are named at once."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UserError(
            f"--puzzle_file is {path!r}: it cannot be read ({why}); give a file with a puzzle a line."
        ) from error
    parts, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parts.append(puzzle.parse(line))
        except UserError as error:
            problems.append(f"--puzzle_file, line {number}: {str(error).removeprefix('--puzzle ')}")
    if problems:
        raise SettingsError(problems)
    if not parts:
        raise UserError(f"--puzzle_file is {path!r}: it has no puzzle; write one a line.")
    return PuzzleSet.join(parts)


@torch.no_grad()
def think(run: PuzzleRun, puzzles: PuzzleSet, steps: int, candidates: int, seed: int) -> Walk:
    """Think on one puzzle from every start, and select the walk of lowest energy."""
    batch = on_device(run, puzzles.batch())
    walks = []
    for candidate in range(candidates):
        numbers, answers, beliefs = [], [], []
        with run.loaded.autocast():
            for thought in run.model.think(batch, steps, candidate_seed(seed, candidate)):
                numbers.append(thought.steps)
                answers.append(run.model.answer_of(thought.logits, batch)[0].cpu().numpy())
                belief = confidence_of(thought.logits, batch) if thought.energy is None else thought.energy
                beliefs.append(float(belief[0]))
        walks.append((numbers, np.stack(answers), np.array(beliefs)))
    ends = [float(beliefs[-1]) for _, _, beliefs in walks]
    best = int(np.argmin(np.where(np.isfinite(ends), ends, np.inf))) if run.has_energy else 0
    solved = [bool(run.puzzle.solved(puzzles, answers[-1:])[0]) for _, answers, _ in walks]
    return Walk(best, *walks[best], ends, solved)


def solved_reference(run: PuzzleRun, steps: int) -> Reference:
    """What the model believes at the end on validation puzzles that it solves; empty if it solves none."""
    try:
        puzzles = sample_puzzles(run, "valid", REFERENCE_ROWS)
    except UserError:  # such as a copied run, whose puzzles are somewhere else
        return Reference(np.zeros(0), np.zeros(0, int))
    thinking = measure_thinking(run, puzzles, steps, 1, 0, REFERENCE_ROWS, lambda _: None)
    solved = thinking.solved[0, :, -1]
    beliefs = thinking.confidence if thinking.energy is None else thinking.energy
    return Reference(beliefs[0, solved, -1], blank_cells(puzzles).sum(1)[solved])


def show(
    run: PuzzleRun,
    puzzles: PuzzleSet,
    walk: Walk,
    reference: Reference,
    command: SolveFlags,
    console: Console,
    heading: str,
) -> None:
    """Print the puzzle, some boards of the walk, and the verdict."""
    if heading:
        console.print(Text(f"\n{heading}"), soft_wrap=True)
    for line in run.puzzle.lines(puzzles, 0, None):
        console.print(Text(f"  {line}"), soft_wrap=True)
    print(f"\n{describe_puzzle(run.puzzle, puzzles)}\n")
    boards = boards_of(run, puzzles, walk)
    chosen = selection(boards, command.boards)
    for text in side_by_side(chosen, console.width, marks=not console.is_terminal or console.color_system is None):
        console.print(text, soft_wrap=True)
    for line in wrap(verdict(run, puzzles, walk, reference)):
        print(line)


def boards_of(run: PuzzleRun, puzzles: PuzzleSet, walk: Walk) -> list[Board]:
    """A board for each thought."""
    boards = []
    for step, answer, belief in zip(walk.steps, walk.answers, walk.beliefs, strict=True):
        belief_text = f"energy {belief:.4g}" if run.has_energy else f"log p {belief:.4g}"
        wrong = int(run.puzzle.violations(puzzles, answer[None]).sum())
        state = f"{wrong} wrong" if wrong else "solved"
        title = f"{run.unit} {step}, {state}\n{belief_text}"
        boards.append(Board.of(run.puzzle, puzzles, 0, answer, title, step, float(belief) if run.has_energy else None))
    return boards


def selection(boards: list[Board], count: int) -> list[Board]:
    """So many boards, first and last among them: those at which the answer changed, spread evenly; 0 is all."""
    if not count or len(boards) <= count:
        return boards
    if count == 1:
        return boards[-1:]
    changed = [n for n in range(1, len(boards)) if boards[n].cells != boards[n - 1].cells]
    inner = [n for n in changed if n < len(boards) - 1] or list(range(1, len(boards) - 1))
    places = np.linspace(0, len(inner) - 1, min(count - 2, len(inner))).round().astype(int)
    return [boards[n] for n in sorted({0, *(inner[place] for place in places), len(boards) - 1})]


def describe_puzzle(puzzle: Puzzle, puzzles: PuzzleSet) -> str:
    """How many blank cells the puzzle has, and whether it has no, one or several answers."""
    blanks = plural(int(blank_cells(puzzles).sum()), "blank cell")
    if not puzzle.has_solver:
        return f"{blanks}; how many answers it has is not known."
    answers = puzzle.answers(puzzles, 0, 2)
    several = ("no answer: it is unsolvable", "exactly one answer", "several answers: any of them counts")
    return f"{blanks}; this puzzle has {several[min(2, len(answers))]}."


def verdict(run: PuzzleRun, puzzles: PuzzleSet, walk: Walk, reference: Reference) -> str:
    """Solved or not by the rules, which candidate was taken, and what the energy says of its end."""
    answer = walk.answers[-1]
    wrong = run.puzzle.violations(puzzles, answer[None])[0]
    if wrong.any():
        cells = np.flatnonzero(wrong[puzzles.real[0]])
        places = [f"{cell // run.puzzle.columns + 1}/{cell % run.puzzle.columns + 1}" for cell in cells[:MOST_PLACES]]
        more = f" and {len(cells) - MOST_PLACES} more" if len(cells) > MOST_PLACES else ""
        text = f"Not solved: {plural(len(cells), 'cell')} break a rule (line/column {', '.join(places)}{more})."
    else:
        same = [bool((each == answer).all()) for each in walk.answers]
        since = walk.steps[len(same) - next((n for n, equal in enumerate(reversed(same)) if not equal), len(same))]
        text = f"Solved: every rule holds, since {run.unit} {since}."
    if len(walk.ends) > 1:
        ends = [
            f"{end:.4g} ({'solved' if solved else 'not solved'})"
            for end, solved in zip(walk.ends, walk.solved, strict=True)
        ]
        text += f" Candidate {walk.candidate + 1} of {len(ends)} ends lowest: {join_words(ends, 'and')}."
    return f"{text} {describe_belief(run, puzzles, walk, reference)}"


def describe_belief(run: PuzzleRun, puzzles: PuzzleSet, walk: Walk, reference: Reference) -> str:
    """The energy at the end beside those of solved validation puzzles with about as many blank cells."""
    end, name = float(walk.beliefs[-1]), "energy" if run.has_energy else "mean log p"
    if not np.isfinite(end):
        return f"The {name} at the end is not finite: the walk diverged."
    if not len(reference.beliefs):
        return f"The {name} at the end is {end:.4g}; this model solves no validation puzzle to compare it with."
    near = reference.nearest(int(blank_cells(puzzles).sum()))
    low, high = float(near.beliefs.min()), float(near.beliefs.max())
    blanks = f"{near.blanks.min()} to {near.blanks.max()} blank cells"
    worse = near.beliefs < end if run.has_energy else near.beliefs > end
    side = "above" if run.has_energy else "below"
    text = (
        f"The {name} at the end is {end:.4g}: {side} that of {worse.mean():.0%} of {len(near.beliefs)} solved "
        f"validation puzzles with {blanks}, whose range is {low:.4g} to {high:.4g}."
    )
    if worse.all():
        return f"{text} So the {name} says that something is wrong with this answer."
    if walk.solved[walk.candidate]:
        return text
    if worse.mean() >= 0.95:
        return f"{text} That is unusual for a right answer."
    return f"{text} So the {name} does not tell that it is wrong."


def draw(run: PuzzleRun, puzzles: PuzzleSet, walk: Walk, folder: Path, name: str) -> str:
    """Draw NAME.png and NAME.gif. -> their names in a sentence"""
    boards = boards_of(run, puzzles, walk)
    title = f"{run.puzzle.spec.dataset}: {run.title} {run.name}"
    png, gif = folder / f"{name}.png", folder / f"{name}.gif"
    chosen = selection(boards, 7)
    write_atomically(png, lambda file: draw_png(chosen, boards, title, file))
    if len(boards) == 1:
        return str(png)
    temporary = gif.with_name(f".{name}.{os.getpid()}.gif")
    try:
        draw_gif(boards, title, str(temporary))
        os.replace(temporary, gif)
    finally:
        temporary.unlink(missing_ok=True)
    return f"{png} and {gif}"
