"""What the tests of the store and of its cache share: small data, a cache of their own, processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from config.settings import Data
from data.store import TokenStore

# the package's own __init__ brings torch, which these processes can do without
PRELUDE = (
    "import sys, types, pathlib\n"
    "package = types.ModuleType('data'); package.__path__ = [str(pathlib.Path('data').resolve())]\n"
    "sys.modules['data'] = package\n"
    "from config.settings import Data\n"
    "from data.store import open_store\n"
)


def write(tmp_path: Path, texts: list[str], **more: Any) -> Data:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Data(dataset_name="jsonl", dataset_dir=str(file), **more)


def documents_of(store: TokenStore, split: str) -> list[str]:
    """The texts of a split, read back from its stream."""
    tokens = np.asarray(store.splits[split].tokens)
    starts = np.flatnonzero(tokens == store.tokenizer.separator_id)
    return [store.tokenizer.decode(part) for part in np.split(tokens, starts)[1:]]


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *arguments]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
