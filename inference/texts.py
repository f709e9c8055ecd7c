"""Rows of text to think about: of the run's own kind, and of another."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from core.errors import UserError
from data.rows import PackedRows
from data.store import Split, open_store
from data.tokenizers import Tokenizer
from inference.loading import Loaded

FEWEST_ROWS = 2  # with fewer there is nothing to resample
# Code in several hands and of several kinds.
MODULES = (
    *("argparse", "calendar", "configparser", "csv", "dataclasses", "difflib", "fractions", "ftplib"),
    *("heapq", "ipaddress", "mailbox", "pickle", "random", "shutil", "statistics", "textwrap", "threading", "turtle"),
)


@dataclass(frozen=True)
class Text:
    """Rows [B, S+1] from all over a text. kind: in-distribution or shifted; name: what it is."""

    kind: str
    name: str
    rows: Tensor

    def targets(self, pad_id: int) -> np.ndarray:
        """How many tokens of each row are predicted, [B]."""
        return (self.rows[:, 1:] != pad_id).sum(1).numpy()


def validation_text(loaded: Loaded, tokens: int) -> Text:
    """Rows of the run's own validation split."""
    name = f"validation split of {loaded.config.data.dataset_name}"
    split = open_store(loaded.config.data, loaded.tokenizer).splits["valid"]
    return Text("in-distribution", name, chosen_rows(loaded, split, tokens, f"The {name}", "choose another run"))


def shifted_text(loaded: Loaded, file: str | None, tokens: int) -> Text:
    """Rows of --shifted, or of Python code."""
    if file is None:
        name, documents, subject = "Python code of the standard library", library_code(), "Python's own code"
    else:
        name, documents, subject = Path(file).name, [read_text(file)], f"--shifted is {file!r}: it"
    split = tokenised(loaded.tokenizer, documents)
    return Text("shifted", name, chosen_rows(loaded, split, tokens, subject, "give a longer file"))


def chosen_rows(loaded: Loaded, split: Split, tokens: int, subject: str, remedy: str) -> Tensor:
    """About so many tokens in rows that lie evenly over the whole split, [B, S+1]."""
    length = loaded.config.architecture.context_length
    needed = FEWEST_ROWS * length
    if tokens < needed:
        raise UserError(
            f"--tokens is {tokens}: an interval needs {FEWEST_ROWS} rows of this model's {length} tokens at least; "
            f"choose {needed} or more."
        )
    rows = PackedRows(split, length, loaded.tokenizer.pad_id)
    if rows.num_targets < needed:
        raise UserError(
            f"{subject} has {rows.num_targets:,} tokens to predict: an interval needs {FEWEST_ROWS} rows of this "
            f"model's {length} tokens, {needed} in all; {remedy}."
        )
    count = min(-(-tokens // length), len(rows))
    return rows.__getitems__((np.arange(count) * len(rows) // count).tolist())


def tokenised(tokenizer: Tokenizer, documents: list[str]) -> Split:
    parts = [part for tokens in tokenizer.encode_batch(documents) for part in ([tokenizer.separator_id], tokens)]
    return Split(np.concatenate(parts).astype(np.int64), len(documents), sum(len(text.encode()) for text in documents))


def read_text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--shifted is {file!r}: cannot read it ({error.strerror}); give a text file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--shifted is {file!r}: it is not text in UTF-8; give a text file.") from error


def library_code() -> list[str]:
    """A fixed choice of modules that this Python carries."""
    folder = Path(os.__file__).parent
    files = [file for name in MODULES if (file := folder / f"{name}.py").is_file()]
    if not files:
        raise UserError("--shifted is missing: this Python comes without the source of its library; give a text file.")
    return [without_docstrings(file.read_text(encoding="utf-8")) for file in files]


def without_docstrings(source: str) -> str:
    """Code alone: docstrings are what the embedded dataset is made of, and would be no other kind of text."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                    lines[number] = ""
    return "".join(lines)
