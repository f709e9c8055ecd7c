"""What the tests of the store and of its cache share: small datasets, their documents, and processes that build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from config.settings import Text
from data.language.store import TokenStore
from tests.data.reading import write_lines

PRELUDE = "import sys\nfrom config.settings import Text\nfrom data.language.store import open_store\n"


def write(tmp_path: Path, texts: list[str], **more: Any) -> Text:
    file = write_lines(tmp_path / "texts.jsonl", *({"text": text} for text in texts))
    return Text(dataset_name="jsonl", dataset_dir=str(file), **more)


def documents_of(store: TokenStore, split: str) -> list[str]:
    """The texts of a split, read back from its stream."""
    tokens = np.asarray(store.splits[split].tokens)
    starts = np.flatnonzero(tokens == store.tokenizer.separator_id)
    return [store.tokenizer.decode(part) for part in np.split(tokens, starts)[1:]]


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *arguments]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
