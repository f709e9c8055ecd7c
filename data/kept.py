"""What a run's folder keeps of its data: data.json and the tokenizer, so that a copied folder can be used elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.files import write_text
from data.module import DataModule
from data.tokenizers import Tokenizer, keep_tokenizer, kept_tokenizer

RECORD = "data.json"


def keep_data(data: DataModule, run: Path) -> None:
    """Write both; the record comes last, so that what it names is there."""
    splits = {name: {"documents": rows.num_documents, "tokens": len(rows.tokens)} for name, rows in data.rows.items()}
    record = {"fingerprint": data.fingerprint, "origin": data.origin, "splits": splits}
    record |= {"tokenizer": keep_tokenizer(data.tokenizer, run)}
    write_text(run / RECORD, json.dumps(record, indent=1) + "\n")


def record_in(run: Path) -> dict[str, Any]:
    """data.json of a run; empty where it has none, as runs of earlier versions."""
    try:
        record = json.loads((run / RECORD).read_bytes())
        return record if isinstance(record["tokenizer"]["name"], str) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def tokenizer_in(run: Path, name: str) -> Tokenizer | None:
    """The tokenizer that a run's folder keeps, if it is the one that --tokenizer names."""
    record = record_in(run).get("tokenizer")
    return kept_tokenizer(record, run) if record and record["name"] == name else None
