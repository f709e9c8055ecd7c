"""synthetic: random text from a fixed seed, without files. If memory leaks with it too, the leak is not in reading."""

from __future__ import annotations

import random
from collections.abc import Iterator
from string import ascii_lowercase

from config.settings import Text
from data.language.sources.source import Source

DOCUMENTS = 2000
WORDS = 512
SUCCESSORS = 8  # each word is followed by one of so many, so that there is something to learn


class Synthetic(Source):
    """--max_documents sets the number of documents, however large."""

    def __init__(self, settings: Text) -> None:
        self.size = settings.max_documents or DOCUMENTS

    def key(self) -> str:
        return f"{self.size} {DOCUMENTS} {WORDS} {SUCCESSORS}"

    def documents(self, split: str) -> Iterator[str]:
        generator = random.Random(0)
        words = ["".join(generator.choices(ascii_lowercase, k=generator.randint(2, 9))) for _ in range(WORDS)]
        successors = [generator.choices(range(WORDS), k=SUCCESSORS) for _ in range(WORDS)]
        for _ in range(self.size):
            word = generator.randrange(WORDS)
            text = []
            for choice in generator.choices(range(SUCCESSORS), k=generator.randint(50, 400)):
                text.append(words[word])
                word = successors[word][choice]
            yield " ".join(text) + "."

    def count(self, split: str) -> int:
        return self.size


DATASETS = {"synthetic": Synthetic}
