"""Every hub name through the real `datasets`, `huggingface_hub` and `transformers`, against a stand-in of the hub."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models

from data.hub import refusal
from data.language.sources import HUB, SPLITS
from tests.data.hub_server import Repository, ask, commit_of, served
from tests.data.small import PRELUDE

pytestmark = pytest.mark.xdist_group("hub")  # one process: its fixture asks the hub for every name
READ = f"""
{PRELUDE}
from core.errors import UserError
from data.language.sources import find_source

def read(name):
    source = find_source(Text(dataset_name=name))
    source.prepare()
    return {{split: list(source.documents(split)) for split in source.splits}}, source.origin()

def attempt(read, name):
    try:
        return read(name)
    except UserError as error:
        return str(error)
"""


def parquet(*rows: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), file)
    return file.getvalue()


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def card(*configs: str, splits: tuple[str, ...], ending: str = "parquet") -> bytes:
    """A README whose head says which files are which part."""
    files = "".join(
        f"- config_name: {config}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {config}/{split}*.{ending}\n" for split in splits)
        for config in configs
    )
    return f"---\nconfigs:\n{files}---\n# A card\n".encode()


def tables(config: str, **splits: bytes) -> dict[str, bytes]:
    return {f"{config}/{split}-00000-of-00001.parquet": data for split, data in splits.items()}


def squad(question: str, *answers: str) -> dict[str, Any]:
    fields = {"text": list(answers), "answer_start": [0] * len(answers)}
    return {"id": "1", "title": "t", "context": "Rome is old.", "question": question, "answers": fields}


PLANS = {
    "task": "t",
    "prompt_type": "oneshot",
    "domain": "d",
    "instance_id": 1,
    "example_instance_ids": [2],
    "query": "Q",
}
ARC = {"id": "1", "question": "hot?", "choices": {"text": ["ice", "fire"], "label": ["A", "B"]}, "answerKey": "B"}
BIG = {"idx": 0, "inputs": "( [", "targets": ["] )"], "multiple_choice_targets": ["] )"], "multiple_choice_scores": [1]}
GATED = Repository(
    {"README.md": card("main", splits=("train",)), **tables("main", train=parquet({"text": "x"}))}, gated=True
)
PAJAMA = "datasets/togethercomputer/RedPajama-Data-1T-Sample"
REPOSITORIES = {
    PAJAMA: Repository(
        {  # a loading script, and files whose rows are of different forms
            "README.md": b"---\npretty_name: Red Pajama 1T Sample\n---\n",
            "RedPajama-Data-1T-Sample.py": b"raise SystemExit('a script that must not run')",
            "arxiv_sample.jsonl": lines({"text": "a paper", "meta": {"timestamp": "t", "yymm": "2001"}}),
            "c4_sample.jsonl": lines({"text": "a\u2028page", "meta": {"url": "u", "language": "en"}}),
            "cc_2019-30_sample.jsonl": lines({"text": "a crawl", "pred_label": "x", "pred_label_prob": 0.5}),
        }
    ),
    "datasets/HuggingFaceFW/fineweb": Repository(
        {
            "README.md": card("sample-10BT", "CC-MAIN-2024-10", splits=("train",)),
            **tables("sample-10BT", train=parquet({"text": "a sample", "id": "1", "token_count": 2})),
            **tables("CC-MAIN-2024-10", train=parquet({"text": "a crawl", "id": "1", "token_count": 2})),
        }
    ),
    "datasets/EleutherAI/lambada_openai": Repository(
        {"README.md": card("en", splits=("test",)), **tables("en", test=parquet({"text": "a last word"}))}
    ),
    "datasets/openai/gsm8k": Repository(
        {
            "README.md": card("main", "socratic", splits=("train", "test")),
            **{
                name: data
                for config in ("main", "socratic")
                for name, data in tables(
                    config,
                    train=parquet({"question": f"{config}?", "answer": "#### 2"}),
                    test=parquet({"question": "tested?", "answer": "#### 3"}),
                ).items()
            },
        }
    ),
    "datasets/allenai/ai2_arc": Repository(
        {
            "README.md": card("ARC-Challenge", "ARC-Easy", splits=("train", "validation", "test")),
            **tables("ARC-Challenge", train=parquet(ARC), validation=parquet(ARC), test=parquet(ARC)),
        }
    ),
    "datasets/rajpurkar/squad_v2": Repository(
        {
            "README.md": card("squad_v2", splits=("train", "validation")),
            **tables(
                "squad_v2",
                train=parquet(squad("What?", "Rome", "old Rome"), squad("Who?")),
                validation=parquet(squad("Where?", "Rome")),
            ),
        }
    ),
    "datasets/hails/bigbench": Repository(
        {
            "README.md": card("dyck_languages_zero_shot", "gem_zero_shot", splits=("default", "train", "validation")),
            **tables(
                "dyck_languages_zero_shot", default=parquet(BIG, BIG), train=parquet(BIG), validation=parquet(BIG)
            ),
        }
    ),
    "datasets/tasksource/planbench": Repository(
        {
            "README.md": card(
                "task_1_plan_generation", "task_3_plan_verification", "task_7_plan_execution", splits=("train",)
            ),
            **tables(
                "task_1_plan_generation",
                train=parquet({**PLANS, "ground_truth_plan": "(a)"}, {**PLANS, "ground_truth_plan": None}),
            ),
            **tables("task_3_plan_verification", train=parquet({**PLANS, "ground_truth_plan": None})),
            **tables("task_7_plan_execution", train=parquet({**PLANS, "ground_truth_plan": ["(a)", "(b)"]})),
        }
    ),
}
TEXTS: dict[str, dict[str, list[str | None]]] = {
    "pajama": {"train": ["a paper", "a\u2028page", "a crawl"]},
    "fineweb": {"train": ["a sample"]},
    "fineweb:CC-MAIN-2024-10": {"train": ["a crawl"]},
    "lambada": {"test": ["a last word"]},
    "gsm8k": {"train": ["Question: main?\nAnswer: #### 2"], "test": ["Question: tested?\nAnswer: #### 3"]},
    "gsm8k:socratic": {"train": ["Question: socratic?\nAnswer: #### 2"], "test": ["Question: tested?\nAnswer: #### 3"]},
    "ai2arc": {split: ["Question: hot?\nA. ice\nB. fire\nAnswer: B"] for split in SPLITS},
    "squad": {
        "train": ["Rome is old.\nQuestion: What?\nAnswer: Rome", None],
        "valid": ["Rome is old.\nQuestion: Where?\nAnswer: Rome"],
    },
    "bigbench:dyck_languages": {"train": ["( [\n] )"], "valid": ["( [\n] )"]},
    "planbench": {"train": ["Q\n(a)", None]},
    "planbench:task_3_plan_verification": {"train": [None]},
    "planbench:task_7_plan_execution": {"train": ["Q\n(a)\n(b)"]},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def answers(home: Path) -> dict[str, Any]:
    code = f"{READ}\ndef answer():\n    return {{name: attempt(read, name) for name in {list(TEXTS)!r}}}"
    with served(REPOSITORIES) as hub:
        return ask(code, hub, home)


def test_every_name_is_asked_for() -> None:
    assert {name.partition(":")[0] for name in TEXTS} == set(HUB)


@pytest.mark.parametrize("name", TEXTS)
def test_hub_name_loads_with_the_real_client(answers: dict[str, Any], name: str) -> None:
    texts, origin = answers[name]
    assert texts == TEXTS[name]
    dataset = HUB[name.partition(":")[0]]
    resolved = commit_of(f"{dataset.repository} main") if dataset.revision == "main" else dataset.revision
    assert origin == {"repository": dataset.repository, "revision": dataset.revision, "commit": resolved}


def test_copies_are_used_when_the_hub_is_gone(answers: dict[str, Any], home: Path) -> None:
    names = ["gsm8k", "squad", "planbench:task_7_plan_execution", "bigbench:dyck_languages", "fineweb"]
    code = f"{READ}\ndef answer():\n    return {{name: attempt(read, name) for name in {names!r}}}"
    again = ask(code, "http://127.0.0.1:9", home)
    assert again.pop("fineweb").startswith(
        "--dataset_name is 'fineweb': the Hugging Face hub cannot be reached and no copy of HuggingFaceFW/fineweb is "
        "here; set HF_HOME to a folder with a downloaded copy, "
    )
    for name, read in again.items():
        assert read[0] == TEXTS[name], name
    assert again["gsm8k"][1]["commit"] == HUB["gsm8k"].revision


def test_the_commit_is_kept_with_the_tokens(answers: dict[str, Any], home: Path, tmp_path: Path) -> None:
    """Read from the copies of the hub the first time, and from the cache of tokens the second."""
    code = f"""{PRELUDE}
def answer():
    settings = Text(dataset_name="planbench:task_7_plan_execution", validation_split_pct=0.0, test_split_pct=0.0)
    return [open_store(settings).origin for _ in range(2)]
"""
    first, second = ask(code, "http://127.0.0.1:9", home, EBT_CACHE=str(tmp_path))
    repository = "tasksource/planbench"
    assert first == {"repository": repository, "revision": "main", "commit": commit_of(f"{repository} main")}
    assert second == first


MISTAKES = """
def answer():
    return {name: attempt(read, name) for name in ("gsm8k", "squad", "bigbench:dyck_langages", "lambada", "pajama")}
"""
ELSEWHERE = "give local files with --dataset_dir, or use --dataset_name pydocs, which needs no download."


def test_what_the_hub_refuses_is_told_apart(tmp_path: Path) -> None:
    script = Repository({"README.md": b"# card\n", "lambada_openai.py": b""})
    repositories = {
        "datasets/openai/gsm8k": GATED,
        "datasets/hails/bigbench": REPOSITORIES["datasets/hails/bigbench"],
        "datasets/EleutherAI/lambada_openai": script,
        PAJAMA: REPOSITORIES[PAJAMA],
    }
    with served(repositories, broken="c4_sample") as hub:
        messages = ask(READ + MISTAKES, hub, tmp_path)
        opened = ask(READ + 'def answer():\n    return attempt(read, "gsm8k")', hub, tmp_path, HF_TOKEN="hf_token")
    assert messages["gsm8k"] == (
        "--dataset_name is 'gsm8k': openai/gsm8k is gated (DatasetNotFoundError: Dataset 'openai/gsm8k' is a gated "
        "dataset on the Hub. You must be authenticated to access it); accept the terms on "
        f"{hub}/datasets/openai/gsm8k, then set HF_TOKEN to a token of your account."
    )
    assert "its examples need the field question" in opened or "Unknown split" in opened  # no longer gated
    assert messages["squad"] == (
        "--dataset_name is 'squad': the hub has no rajpurkar/squad_v2 (DatasetNotFoundError: Dataset "
        f"'rajpurkar/squad_v2' doesn't exist on the Hub or cannot be accessed); {ELSEWHERE}"
    )
    assert messages["bigbench:dyck_langages"] == (
        "--dataset_name is 'bigbench:dyck_langages': hails/bigbench has no such part (ValueError: BuilderConfig "
        "'dyck_langages_zero_shot' not found); choose bigbench:dyck_languages."
    )
    assert messages["lambada"] == (
        "--dataset_name is 'lambada': the hub's EleutherAI/lambada_openai cannot be loaded (RuntimeError: Dataset "
        f"scripts are no longer supported, but found lambada_openai.py); {ELSEWHERE}"
    )
    assert messages["pajama"].startswith("--dataset_name is 'pajama': its train split cannot be read (")
    assert messages["pajama"].endswith("); it is read over the network as it goes: try again.")


# ---- tokenizers

WORDS = {
    "tokenizer.json": Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")).to_str().encode(),
    "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
    "config.json": b'{"model_type": "gpt2"}',
}
TOKENIZERS = {
    "some/words": Repository(WORDS),
    "some/gated": Repository(WORDS, gated=True),
    "some/pieces": Repository({"spm.model": b"\n", "config.json": b'{"model_type": "deberta-v2"}'}),
    "some/weights": Repository({"config.json": b'{"model_type": "gpt2"}'}),
}
BUILD = """
from data.language.tokenizers import build_tokenizer

def build(name):
    return build_tokenizer(name, list).encode("a").tolist()

def answer():
    names = ("some/words", "some/gated", "some/pieces", "some/weights", "some/nothing")
    return {name: attempt(build, name) for name in names}
"""


def test_tokenizers_that_the_hub_refuses_are_told_apart(tmp_path: Path) -> None:
    with served(TOKENIZERS) as hub:
        messages = ask(READ + BUILD, hub, tmp_path)
    assert messages["some/words"] == [0]
    choices = "choose bytes, bpe:SIZE, or a Hugging Face name or folder."
    assert messages["some/gated"] == (
        "--tokenizer is 'some/gated': some/gated is gated (OSError: You are trying to access a gated repo); "
        f"accept the terms on {hub}/some/gated, then set HF_TOKEN to a token of your account."
    )
    assert messages["some/pieces"] == (
        "--tokenizer is 'some/pieces': its spm.model needs the package sentencepiece; "
        "install it with pip install sentencepiece."
    )
    assert messages["some/weights"] == (
        "--tokenizer is 'some/weights': the hub's some/weights holds no tokenizer (ValueError: it has none of the "
        f"files of a tokenizer); {choices}"
    )
    assert messages["some/nothing"] == (
        "--tokenizer is 'some/nothing': the hub has no some/nothing (OSError: some/nothing is not a local folder and "
        f"is not a valid model identifier listed on 'https://huggingface.co/models'); {choices}"
    )
    offline = ask(READ + BUILD, hub, tmp_path)  # the server is gone
    assert offline["some/words"] == [0]
    for name in ("some/gated", "some/nothing"):
        assert offline[name] == (
            f"--tokenizer is {name!r}: it is no folder, was not downloaded before, and the Hugging Face hub cannot be "
            f"reached; set HF_HOME to a folder with a downloaded copy, or {choices}"
        )


def test_a_package_that_is_missing_is_named() -> None:
    error = ImportError("Loading this needs `soundfile`: pip install soundfile")
    problem = refusal(error, "some/sounds", "dataset")
    assert problem.kind == "package" and problem.remedy == "install it with pip install soundfile"
    assert problem.reason.startswith("some/sounds needs a package that is not here (ImportError: Loading this needs")
