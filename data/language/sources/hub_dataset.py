"""Datasets of the Hugging Face hub: loaded by `datasets`, from the hub or from local files of the same fields.

Each dataset has a file beside this one that says where it is and how an example becomes text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from config.settings import Text
from core.errors import UserError
from core.progress import print_note
from data.hub import COMMIT, first_line, hub_is_reachable, offline_libraries, refusal
from data.language.sources.local_files import find_files
from data.language.sources.source import SPLITS, Source, files_key

Example = Mapping[str, Any]
ENDINGS = (".jsonl", ".json", ".parquet")
SPLIT_WORDS = {"train": "train", "test": "test"} | dict.fromkeys(("validation", "valid", "val", "dev"), "valid")


@dataclass(frozen=True)
class Question:
    """What is asked, and the answers that are right.

    The prompt ends where the dataset's text has the answer. choices: the answers to choose from, where they are known,
    as they would follow the prompt.
    """

    prompt: str
    accepted: tuple[str, ...]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuestionFormat:
    """How the questions of a dataset are asked and graded.

    question: that of an example, None where it has no answer. end: a pattern; an answer is over where its first match
    ends. compare: how an answer is compared with the accepted ones: by its words (as SQuAD does it), exactly but for
    white space, or by its number.
    """

    question: Callable[[Example], Question | None]
    end: str = r"\n"
    compare: Literal["words", "exact", "number"] = "exact"


@dataclass(frozen=True)
class HubDataset:
    """Where a dataset is and how to read it.

    fields: those that to_text needs; it gives None for an example that has no text. splits: our name -> the hub's.
    revision: a commit, or a ref whose commit is looked up and recorded. part: the one taken when none is named after a
    colon; parts: the names known; any_part: others exist; config: the hub's name of a part. lines: the files to read
    line by line, each line a JSON object of its own form, which `datasets` cannot read as one table.
    streaming: read over the network as it goes, for a dataset that is too large to download.
    question_format: of a dataset that can be used as questions.
    """

    repository: str
    fields: tuple[str, ...]
    to_text: Callable[[Example], str | None]
    splits: Mapping[str, str]
    revision: str = "main"
    part: str | None = None
    parts: tuple[str, ...] = ()
    any_part: bool = False
    config: str = "{part}"
    lines: str | None = None
    streaming: bool = False
    question_format: QuestionFormat | None = None


class HubSource(Source):
    """One dataset of the hub, or with --dataset_dir its local copy: files named by split, or files without split."""

    def __init__(self, dataset: HubDataset, settings: Text) -> None:
        self.dataset = dataset
        self.settings = settings
        self.part = _choose_part(dataset, settings.dataset_name)
        self.files = _files_by_split(settings) if settings.dataset_dir is not None else None
        self.splits = tuple(name for name in SPLITS if name in (self.files or dataset.splits))
        self.commit: str | None = None  # of the hub's files, known once they are loaded
        self.by_line = False
        self.streams = False

    def key(self) -> str:
        """The hub's copy counts as unchanged, so that a run whose tokens are cached needs no network."""
        if self.files:
            location = " ".join(f"{split} {files_key(files)}" for split, files in self.files.items())
        else:
            location = f"{self.dataset.repository} {self.dataset.revision} {self.part}"
        return f"{location} {inspect.getsource(self.dataset.to_text)}"

    def origin(self) -> dict[str, str]:
        if self.files:
            return {}
        names = {"repository": self.dataset.repository, "revision": self.dataset.revision}
        return {**names, "commit": self.commit or "unknown"}

    def prepare(self) -> None:
        assert self.loaded

    def documents(self, split: str) -> Iterator[str | None]:
        return map(self.text, self.examples(split))

    def text(self, example: Example) -> str | None:
        with self._of_expected_form():
            return self.dataset.to_text(example)

    def question(self, example: Example) -> Question | None:
        """The question of an example; None where it has no answer."""
        assert self.dataset.question_format is not None
        with self._of_expected_form():
            return self.dataset.question_format.question(example)

    @contextmanager
    def _of_expected_form(self) -> Iterator[None]:
        """Turn an example whose fields hold something else into one sentence: a local file may hold anything."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--dataset_name is {self.settings.dataset_name!r}: an example is not of the form that "
                f"{self.dataset.repository} has ({first_line(error)}); put it into that form, or leave it out."
            ) from error

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of one of `splits`, with all the fields that they need."""
        fields = self.dataset.fields
        examples = iter(self.loaded[split])
        while True:
            try:
                example = next(examples)
                if self.by_line:
                    if not example["text"].strip():
                        continue
                    example = json.loads(example["text"])
            except StopIteration:
                return
            except Exception as error:  # readers of every format and the network raise what they like
                remedy = (
                    "repair or replace the files" if self.files else "remove the copy in HF_HOME, and load it again"
                )
                if self.streams:
                    remedy = "it is read over the network as it goes: try again"
                raise UserError(
                    f"--dataset_name is {self.settings.dataset_name!r}: its {split} split cannot be read "
                    f"({first_line(error)}); {remedy}."
                ) from error
            if missing := [field for field in fields if field not in example]:
                raise UserError(
                    f"--dataset_name is {self.settings.dataset_name!r}: its examples need the field "
                    f"{', '.join(missing)}, but have {', '.join(sorted(example))}; give files with it."
                )
            yield example

    def count(self, split: str) -> int | None:
        examples = self.loaded[split]
        return len(examples) if hasattr(examples, "__len__") else None

    @cached_property
    def loaded(self) -> dict[str, Any]:
        """The examples per split."""
        return self._load_files(self.files) if self.files else self._load_from_hub()

    def _load_files(self, files: dict[str, list[Path]]) -> dict[str, Any]:
        from datasets import load_dataset

        kinds = {"parquet" if file.suffix == ".parquet" else "json" for group in files.values() for file in group}
        if len(kinds) > 1:
            raise UserError(f"--dataset_dir is {self.settings.dataset_dir!r}: use JSON or Parquet files, not both.")
        data_files = {split: [str(file) for file in group] for split, group in files.items()}
        self.by_line = self.dataset.lines is not None and kinds == {"json"}
        try:
            # streamed, since `datasets` would otherwise write a second copy into its own cache
            return dict(load_dataset("text" if self.by_line else kinds.pop(), data_files=data_files, streaming=True))
        except Exception as error:
            raise UserError(
                f"--dataset_dir is {self.settings.dataset_dir!r}: its files cannot be read ({first_line(error)}); "
                "repair or replace them."
            ) from error

    def _load_from_hub(self) -> dict[str, Any]:
        name, dataset = self.settings.dataset_name, self.dataset
        reachable = hub_is_reachable()
        from datasets import load_dataset

        self.by_line, self.streams = dataset.lines is not None, dataset.streaming and reachable
        try:
            with nullcontext() if reachable else offline_libraries():
                commit = self._commit_on_the_hub() if reachable else dataset.revision
                if dataset.lines:
                    files = f"hf://datasets/{dataset.repository}@{commit}/{dataset.lines}"
                    options: dict[str, Any] = {"path": "text", "data_files": files}
                else:
                    part = self.part and dataset.config.format(part=self.part)
                    options = {"path": dataset.repository, "name": part, "revision": commit}
                loaded = {
                    ours: load_dataset(**options, split=theirs, streaming=self.streams)
                    for ours, theirs in dataset.splits.items()
                }
        except Exception as error:
            raise UserError(f"--dataset_name is {name!r}: {self._why_not(error, reachable)}.") from error
        self.commit = commit if reachable else self._commit_of_the_copy(loaded)
        if COMMIT.fullmatch(dataset.revision) and self.commit != dataset.revision:
            print_note(f"The copy of {dataset.repository} here is of commit {self.commit}, not {dataset.revision}.")
        return loaded

    def _commit_on_the_hub(self) -> str:
        """All splits are of one commit, even if the hub's files change meanwhile."""
        from huggingface_hub import HfApi

        dataset = self.dataset
        if COMMIT.fullmatch(dataset.revision):
            return dataset.revision
        return HfApi().dataset_info(dataset.repository, revision=dataset.revision).sha or dataset.revision

    def _commit_of_the_copy(self, loaded: dict[str, Any]) -> str | None:
        """`datasets` keeps a copy in a folder named after its commit."""
        files = [Path(file["filename"]) for split in loaded.values() for file in getattr(split, "cache_files", [])]
        return next((file.parent.name for file in files if COMMIT.fullmatch(file.parent.name)), None)

    def _why_not(self, error: Exception, reachable: bool) -> str:
        repository, base = self.dataset.repository, self.settings.dataset_name.partition(":")[0]
        elsewhere = "give local files with --dataset_dir, or use --dataset_name pydocs, which needs no download"
        if not reachable:
            return (
                f"the Hugging Face hub cannot be reached and no copy of {repository} is here; "
                f"set HF_HOME to a folder with a downloaded copy, {elsewhere}"
            )
        why = refusal(error, repository, "dataset")
        if why.kind == "config":
            ours = re.compile(re.escape(self.dataset.config).replace(re.escape("{part}"), "(.+)"))
            names = re.findall(r"'([^']+)'", str(error).partition("Available:")[2])
            parts = [match[1] for name in names if (match := ours.fullmatch(name))]
            near = get_close_matches(self.part or "", parts, 3, 0.3) or parts[:3]
            return f"{why.reason}; choose {', '.join(f'{base}:{part}' for part in near) or 'another'}"
        return f"{why.reason}; {why.remedy or elsewhere}"


def _choose_part(dataset: HubDataset, name: str) -> str | None:
    base, colon, part = name.partition(":")
    if not colon and (dataset.part or not (dataset.parts or dataset.any_part)):
        return dataset.part
    choices = ", ".join(f"{base}:{choice}" for choice in dataset.parts)
    if not part:
        raise UserError(f"--dataset_name is {name!r}: name a part of it, as in {choices}.")
    if not dataset.parts and not dataset.any_part:
        raise UserError(f"--dataset_name is {name!r}: {base} has no parts; give {base} alone.")
    if part not in dataset.parts and not dataset.any_part:
        near = get_close_matches(part, dataset.parts, 1, 0.5)
        hint = f" Did you mean {base}:{near[0]}?" if near else ""
        raise UserError(f"--dataset_name is {name!r}: choose {choices}.{hint}")
    return part


def _files_by_split(settings: Text) -> dict[str, list[Path]]:
    """Files grouped by the split in their names, as in train.jsonl or test-00000-of-00001.parquet, or all as train."""
    files = find_files(settings, ENDINGS)
    groups: dict[str, list[Path]] = {}
    for file in files:
        words = re.split(r"[^a-z]+", file.stem.lower())
        split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
        groups.setdefault(split, []).append(file)
    if set(groups) == {""} or len(files) == 1:
        return {"train": files}
    if unnamed := groups.get(""):
        raise UserError(
            f"--dataset_dir is {settings.dataset_dir!r}: {unnamed[0].name} is not named after a split as others are; "
            "put train, validation or test into its name, or take it away."
        )
    if "train" not in groups:
        raise UserError(
            f"--dataset_dir is {settings.dataset_dir!r}: no file of it is named train; name the training files so."
        )
    return groups
