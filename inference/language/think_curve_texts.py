"""The texts of a think-curve: rows of the run's validation split, and of shifted text, which is of another kind."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from config.settings import Text, Transformer
from core.errors import UserError
from data.language.rows import PackedRows
from data.language.store import Split, open_store
from data.language.tokenizers import Tokenizer
from inference.loading import Loaded
from inference.think_curve import Sample

MIN_ROWS = 2  # for a bootstrap over rows
# Code by several authors and of several kinds: the default shifted text.
LIBRARY_MODULES = (
    *("argparse", "calendar", "configparser", "csv", "dataclasses", "difflib", "fractions", "ftplib"),
    *("heapq", "ipaddress", "mailbox", "pickle", "random", "shutil", "statistics", "textwrap", "threading", "turtle"),
)


@dataclass(frozen=True)
class TextSample(Sample):
    """Rows [B, S+1] spread evenly over a text."""

    rows: Tensor

    def targets(self, pad_id: int) -> np.ndarray:
        """Number of predicted tokens of each row, [B]."""
        return (self.rows[:, 1:] != pad_id).sum(1).numpy()


def validation_text(loaded: Loaded, tokens: int) -> TextSample:
    """Rows of the run's own validation split."""
    name = f"validation split of {loaded.config.data.dataset_name}"
    split = open_store(loaded.config[Text], loaded.processor).splits["valid"]
    return TextSample("in-distribution", name, sample_rows(loaded, split, tokens, f"The {name}", "choose another run"))


def shifted_text(loaded: Loaded, file: str | None, tokens: int) -> TextSample:
    """Rows of --shifted, or of Python code."""
    if file is None:
        name, documents, subject = "Python code of the standard library", library_code(), "Python's own code"
    else:
        name, documents, subject = Path(file).name, [read_text_file(file)], f"--shifted is {file!r}: it"
    split = tokenize_documents(loaded.processor, documents)
    return TextSample("shifted", name, sample_rows(loaded, split, tokens, subject, "give a longer file"))


def sample_rows(loaded: Loaded, split: Split, tokens: int, subject: str, remedy: str) -> Tensor:
    """About this many tokens, in rows spread evenly over the whole split, [B, S+1]."""
    length = loaded.config[Transformer].context_length
    needed = MIN_ROWS * length
    if tokens < needed:
        raise UserError(
            f"--tokens is {tokens}: an interval needs {MIN_ROWS} rows of this model's {length} tokens at least; "
            f"choose {needed} or more."
        )
    rows = PackedRows(split, length, loaded.processor.pad_id)
    if rows.num_units < needed:
        raise UserError(
            f"{subject} has {rows.num_units:,} tokens to predict: an interval needs {MIN_ROWS} rows of this "
            f"model's {length} tokens, {needed} in all; {remedy}."
        )
    count = min(-(-tokens // length), len(rows))
    return rows.__getitems__((np.arange(count) * len(rows) // count).tolist())["input_ids"]


def tokenize_documents(tokenizer: Tokenizer, documents: list[str]) -> Split:
    parts = [part for tokens in tokenizer.encode_batch(documents) for part in ([tokenizer.separator_id], tokens)]
    return Split(np.concatenate(parts).astype(np.int64), len(documents), sum(len(text.encode()) for text in documents))


def read_text_file(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--shifted is {file!r}: cannot read it ({error.strerror}); give a text file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--shifted is {file!r}: it is not text in UTF-8; give a text file.") from error


def library_code() -> list[str]:
    """The source of a fixed list of modules of this Python."""
    folder = Path(os.__file__).parent
    files = [file for name in LIBRARY_MODULES if (file := folder / f"{name}.py").is_file()]
    if not files:
        raise UserError("--shifted is missing: this Python comes without the source of its library; give a text file.")
    return [without_docstrings(file.read_text(encoding="utf-8")) for file in files]


def without_docstrings(source: str) -> str:
    """Code only: the built-in dataset consists of docstrings, so they would not be shifted text."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                    lines[number] = ""
    return "".join(lines)
