"""Question sets: what is asked, how an answer is made and ended, chosen and graded, and what is left of it on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from config.settings import Text, Transformer
from core.files import read_rows
from data.language.sources import HUB, find_source
from data.language.sources.hub_dataset import HubSource, Question
from data.language.store import read_documents
from inference.__main__ import main
from inference.language.decoder import Prediction
from inference.language.questions import (
    QuestionAnswerer,
    f1_score,
    grade,
    normalize,
    read_questions,
    summary,
    wilson_interval,
)
from inference.language.walk import walk_rows
from inference.loading import Loaded, ModelFlags, load
from inference.thinking import plan_from_flags
from models.language import EnergyLM
from tasks.language_commands import GreedyInference
from tests.data.reading import write_lines

ASKING = HUB["gsm8k"].question_format
PROMPTS = ("def f(", "Question: 1+1?\nAnswer:", "a" * 90)  # the last is longer than the context


@pytest.fixture(scope="module", params=["ebt", "residual", "baseline"])
def answerer(request: pytest.FixtureRequest) -> QuestionAnswerer:
    run: Path = request.getfixturevalue(f"{request.param}_run")
    loaded = load(ModelFlags(run=str(run)))
    settings = GreedyInference(infer_max_gen_len=6)
    return QuestionAnswerer(loaded, plan_from_flags(loaded.model, settings), settings, seed=0, batch_size=2)


def next_logits(answerer: QuestionAnswerer, tokens: list[int]) -> Tensor:
    """Without a cache. -> [V]"""
    window = torch.tensor([tokens[-answerer.loaded.config[Transformer].context_length :]])
    model = answerer.loaded.model
    if isinstance(model, EnergyLM):
        assert answerer.plan is not None
        return walk_rows(model, window, answerer.plan).y[0, -1]
    return model(window)[0, -1]


def read_prompt(loaded: Loaded, prompt: str) -> list[int]:
    return [loaded.processor.separator_id, *loaded.processor.encode(prompt).tolist()]


def test_an_answer_is_the_likeliest_tokens(answerer: QuestionAnswerer) -> None:
    tokenizer = answerer.loaded.processor
    prompts = [read_prompt(answerer.loaded, prompt) for prompt in PROMPTS[:2]]
    answers = answerer.generate_answers(prompts, answerer.uniforms(prompts), r"never")
    for prompt, (text, finished) in zip(prompts, answers, strict=True):
        tokens = list(prompt)
        for _ in range(6):
            logits_V = next_logits(answerer, tokens)
            logits_V[tokenizer.pad_id] = -torch.inf
            tokens.append(int(logits_V.argmax()))
            if tokens[-1] == tokenizer.separator_id:
                break
        assert text == tokenizer.decode(tokens[len(prompt) :]).strip() and finished == (
            tokens[-1] == tokenizer.separator_id
        )


def test_answers_are_batch_invariant(answerer: QuestionAnswerer) -> None:
    warm = QuestionAnswerer(
        answerer.loaded, answerer.plan, GreedyInference(infer_temp=1.0, infer_max_gen_len=6), seed=3, batch_size=2
    )
    questions = [Question(prompt, ("x",)) for prompt in PROMPTS]
    assert ASKING is not None
    together, cut = warm.answer_all(questions, ASKING)
    apart = [warm.answer_all([question], ASKING)[0][0] for question in questions]
    assert together == apart and cut == 1
    assert len({answer.text for answer in together}) == 3
    twice, _ = warm.answer_all([questions[0]] * 2, ASKING)
    assert twice[0] == together[0] != twice[1]  # asked again, it is drawn again


def test_the_likelihood_of_a_choice(answerer: QuestionAnswerer) -> None:
    prompts = [read_prompt(answerer.loaded, prompt) for prompt in PROMPTS[:2]]
    choices = ((" A", " Bcd", "é"), (" yes", " no"))
    best = []
    for prompt, some in zip(prompts, choices, strict=True):
        sums = []
        for choice in some:
            tokens, total = list(prompt), 0.0
            for token in answerer.loaded.processor.encode(choice).tolist():
                total += float(next_logits(answerer, tokens).double().log_softmax(-1)[token])
                tokens.append(token)
            sums.append(total)
        pairs = [(prompt, answerer.loaded.processor.encode(choice).tolist()) for choice in some]
        assert answerer.log_likelihoods(pairs) == pytest.approx(sums, abs=1e-4)
        best.append(max(zip(sums, some, strict=True))[1].strip())
    assert answerer.choose_answers([*prompts, prompts[0]], (*choices, ())) == [*best, None]


class Parrot:
    """Stands for a decoder: after each prompt it predicts the text given for it, letter by letter."""

    def __init__(self, says: dict[str, str], texts: Sequence[Sequence[int]]) -> None:
        self.says, self.rows = says, [list(text) for text in texts]

    def predict(self) -> Prediction:
        logits_BV = torch.zeros(len(self.rows), 258)
        for row, tokens in enumerate(self.rows):
            read = bytes(tokens[1:]).decode()
            (rest,) = (says[len(read) - len(prompt) :] for prompt, says in self.says.items() if read.startswith(prompt))
            logits_BV[row, ord(rest[0]) if rest else 256] = 1
        return Prediction(logits_BV)

    def continue_rows(self, tokens: Sequence[int], rows: Sequence[int]) -> None:
        for row in rows:
            self.rows[row].append(tokens[row])
        self.rows = [self.rows[row] for row in rows]


@pytest.mark.parametrize(
    ("dataset", "says", "texts"),
    [
        ("squad", {"q1": " Rome\nmore", "q2": " in the year\n", "q3": "\nx"}, ["Rome", "in the year", ""]),
        ("gsm8k", {"q1": " 1+1\n#### 2\nQ", "q2": " 3\n4\n#### 7"}, ["1+1\n#### 2", "3\n4\n#### 7"]),
        ("lambada", {"q1": " king of", "q2": "dom. And"}, ["king", "dom."]),
        ("planbench", {"q1": "(a)\n(b)\n\nx", "q2": "(c)"}, ["(a)\n(b)", "(c)"]),
        ("ai2arc", {"q1": " B\nQuestion"}, ["B"]),
        ("bigbench", {"q1": "] )\n( ["}, ["] )"]),
    ],
)
def test_where_an_answer_ends(
    ebt_run: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, says: dict[str, str], texts: list[str]
) -> None:
    asking = HUB[dataset].question_format
    assert asking is not None
    monkeypatch.setattr(
        "inference.language.questions.make_decoder", lambda model, plan, texts, max_new_tokens: Parrot(says, texts)
    )
    answerer = QuestionAnswerer(
        load(ModelFlags(run=str(ebt_run))), None, GreedyInference(infer_max_gen_len=20), seed=0, batch_size=8
    )
    answers, _ = answerer.answer_all([Question(prompt, ("?",)) for prompt in says], asking)
    assert [answer.text for answer in answers] == texts and all(answer.finished for answer in answers)
    short = QuestionAnswerer(answerer.loaded, None, GreedyInference(infer_max_gen_len=2), seed=0, batch_size=8)
    answers, _ = short.answer_all([Question("q1", ("?",))], asking)
    assert not answers[0].finished and len(answers[0].text) <= 2


@pytest.mark.parametrize(
    ("how", "text", "accepted", "exact", "f1"),
    [
        ("words", "The  Eiffel-Tower!", ("eiffeltower",), True, 1),
        ("words", "in the old Rome", ("Rome", "old rome"), False, 0.8),
        ("words", "", ("Rome",), False, 0),
        ("words", "the", ("a",), False, 0),  # nothing is left of either
        ("exact", "A", ("A",), True, 1),  # a letter, not an article
        ("exact", "] )", (") ]", "]  )"), True, 1),
        ("exact", "a b", ("A b",), False, 0.5),
        ("number", "so 6*3=18\n#### $18.00", ("18",), True, 1),
        ("number", "#### 1,200", ("1200",), True, 1),
        ("number", "#### -3", ("3",), False, 0),
        ("number", "18", ("18",), False, 0),  # not where it belongs
        ("number", "#### none", ("none",), False, 0),
        ("exact", "x", (), False, 0),
    ],
)
def test_grades(how: str, text: str, accepted: tuple[str, ...], exact: bool, f1: float) -> None:
    answer = grade(Question("?", accepted), text, True, None, how)
    assert answer.exact is exact and answer.f1 == pytest.approx(f1)


def test_words_count_as_often_as_they_occur() -> None:
    assert f1_score(normalize("Rome Rome Rome", "words"), normalize("Rome is old", "words")) == pytest.approx(1 / 3)


def test_what_answers_come_to() -> None:
    question = Question("?", ("B ",), (" A", " B"))
    answers = [
        grade(question, text, text != "C", choice, "exact") for text, choice in [("B", "B"), ("C", "B"), ("A", "A")]
    ]
    result = summary(answers)
    assert result["exact"] == pytest.approx(1 / 3) and result["choice_accuracy"] == pytest.approx(2 / 3)
    assert result["questions"] == result["questions_with_choices"] == 3 and result["unfinished"] == 1
    assert "choice_accuracy" not in summary([grade(question, "B", True, None, "exact")])


def test_the_interval_of_a_share() -> None:
    assert wilson_interval(0, 20) == pytest.approx((0, 0.1611), abs=1e-4)
    assert wilson_interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(20, 20) == pytest.approx((0.8389, 1), abs=1e-4)


def test_questions_of_a_split(tmp_path: Path) -> None:
    rows = [{"question": f"q{number}", "answer": f"#### {number}"} for number in range(60)]
    data = Text(dataset_name="gsm8k", dataset_dir=str(write_lines(tmp_path / "all.jsonl", *rows, rows[0])))
    source = find_source(data)
    assert isinstance(source, HubSource)
    answers_by_split = {
        split: [q.accepted[0] for q in read_questions(source, data, split)] for split in ("train", "valid", "test")
    }
    for split, answers in answers_by_split.items():
        texts = [document.text for document in read_documents(source, data) if document.split == split]
        assert set(answers) == {text.rpartition(" ")[2] for text in texts} and answers  # never what was trained on
    assert len(list(read_questions(source, data, "all"))) == 61  # as the dataset has them, twice where it has them so


def test_questions_of_named_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_lines(tmp_path / f"{split}.jsonl", *({"question": split, "answer": str(n)} for n in range(40)))
    data = Text(dataset_name="gsm8k", dataset_dir=str(tmp_path), validation_split_pct=0.2)
    source = find_source(data)
    assert isinstance(source, HubSource)
    counts = {name: len(list(read_questions(source, data, name))) for name in ("train", "valid", "test", "all")}
    assert counts["test"] == 40 and counts["all"] == 80
    assert 0 < counts["valid"] < 20 and counts["train"] + counts["valid"] == 40


def command(run: Path, out: Path, *flags: str) -> list[str]:
    return ["evaluate", "--run", str(run), "--infer_output_dir", str(out), "--infer_max_gen_len", "4", *flags]


def test_answers_on_screen_and_on_disk(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arc = {"choices": {"text": ["ice", "fire"], "label": ["A", "B"]}, "answerKey": "B"}
    questions = ["Which is \x1b[31mhot?", *(f"Which is hot in {number}?" for number in range(4))]
    file = write_lines(tmp_path / "arc.jsonl", *({"question": question, **arc} for question in questions))
    data = ("--dataset_name", "ai2arc:ARC-Easy", "--dataset_dir", str(file))
    assert main(command(ebt_run, tmp_path, *data, "--limit", "3")) == 0
    out = capsys.readouterr().out
    assert "ai2arc:ARC-Easy, all, the first 3 of 5 questions" in out and "likeliest choice is right" in out
    assert "longer than the context of 32 tokens, so that only the end was read: 3 prompts" in out
    assert "cut off at --infer_max_gen_len 4: " in out
    assert "\x1b" not in out and r"Which is \x1b[31mhot?" in out
    (saved,) = tmp_path.glob("answers_ai2arc-ARC-Easy_*.jsonl")
    rows = read_rows(saved)
    assert [row["prompt"] for row in rows] == [f"Question: {q}\nA. ice\nB. fire\nAnswer:" for q in questions[:3]]
    assert rows[0].keys() == {"prompt", "answer", "accepted", "choice", "exact", "f1"}
    (row,) = read_rows(tmp_path / "evaluation.jsonl")
    assert row["settings"] == {"limit": 3, "infer_max_gen_len": 4}
    results = row["results"]
    assert results["questions"] == 3 and results["cut_prompts"] == 3
    assert results["exact"] == sum(row["exact"] for row in rows) / 3
    assert results["choice_accuracy"] == sum(row["choice"] == "B" for row in rows) / 3


def test_a_split_that_is_cut(baseline_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_lines(tmp_path / "l.jsonl", *({"text": f"the king of {number}"} for number in range(60)))
    data = ("--dataset_name", "lambada", "--dataset_dir", str(file))
    assert main(command(baseline_run, tmp_path, *data, "--split", "valid")) == 0
    assert "the valid split is cut from the training examples: lambada has none of its own" in capsys.readouterr().out


def test_questions_without_an_answer_are_left_out(
    baseline_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [None, "(stack a b)", None, "(stack b a)"]
    rows = [{"query": f"Stack {number}.", "ground_truth_plan": plan} for number, plan in enumerate(plans)]
    data = ("--dataset_name", "planbench", "--dataset_dir", str(write_lines(tmp_path / "p.jsonl", *rows)))
    assert main(command(baseline_run, tmp_path, *data, "--split", "all")) == 0
    output = capsys.readouterr()
    assert "2 of 4 questions of planbench have no answer and were left out." in output.err
    (saved,) = tmp_path.glob("answers_planbench_*.jsonl")
    assert [row["accepted"] for row in read_rows(saved)] == [["(stack a b)"], ["(stack b a)"]]


@pytest.mark.parametrize(
    ("flags", "example", "message"),
    [
        (
            ["gsm8k"],
            {"question": "q"},
            "--dataset_name is 'gsm8k': its examples need the field answer, but have question; give files with it.",
        ),
        (
            ["squad"],
            {"context": "c", "question": "q", "answers": "Rome"},
            "--dataset_name is 'squad': an example is not of the form that rajpurkar/squad_v2 has (TypeError: string "
            "indices must be integers, not 'str'); put it into that form, or leave it out.",
        ),
        (
            ["gsm8k", "--infer_topk", "3"],
            {"question": "q", "answer": "a"},
            "--infer_topk has no effect with --infer_temp 0, which takes the likeliest token: "
            "remove it, or give a temperature.",
        ),
        (
            ["gsm8k", "--split", "valid"],
            {"question": "q", "answer": "#### 2"},
            "The valid split of gsm8k is empty: choose another with python -m inference evaluate --split, or all.",
        ),
    ],
)
def test_mistakes(
    baseline_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    example: dict[str, Any],
    message: str,
) -> None:
    file = write_lines(tmp_path / "q.jsonl", example)
    assert main(command(baseline_run, tmp_path, "--dataset_dir", str(file), "--dataset_name", *flags)) == 2
    assert capsys.readouterr().err.strip() == message
    assert not (tmp_path / "evaluation.jsonl").exists()
