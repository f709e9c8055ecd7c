"""What the tests of the datasets share: reading one, and the sentence when that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.settings import Text
from core.errors import UserError
from data.language.sources import find_source


def read(name: str, folder: Path | str | None = None, split: str = "train", **settings: Any) -> list[Any]:
    source = find_source(Text(dataset_name=name, dataset_dir=None if folder is None else str(folder), **settings))
    source.prepare()
    return list(source.documents(split))


def message(name: str, folder: Path | str | None = None, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        read(name, folder, **settings)
    text = str(error.value)
    assert "\n" not in text
    return text


def write_lines(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file
