"""Answers of a model to the questions of a dataset, and their grades."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch

from config.settings import Inference, Text, Transformer
from core.progress import print_note, progress
from data.language.sources.hub_dataset import HubSource, Question, QuestionFormat
from data.language.store import digest_of, missing_shares, split_of
from inference.language.decoder import make_decoder
from inference.language.generator import KeyedUniform, Sampling, draw
from inference.loading import Loaded
from inference.thinking import WalkPlan

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NUMBER = re.compile(r"(-?)\$?(\d[\d,]*(?:\.\d+)?|\.\d+)")
Z_95 = 1.959964  # 95% of a normal distribution lie within so many standard deviations


@dataclass(frozen=True)
class Answer:
    """The answer of a model. finished: it ended before --infer_max_gen_len; choice: the likeliest of the choices."""

    question: Question
    text: str
    finished: bool
    choice: str | None
    exact: bool
    f1: float

    @property
    def chose_right(self) -> bool:
        return self.choice in [answer.strip() for answer in self.question.accepted]

    def row(self) -> dict[str, Any]:
        answer = {"prompt": self.question.prompt, "answer": self.text, "accepted": list(self.question.accepted)}
        choice = {"choice": self.choice} if self.choice is not None else {}
        return {**answer, **choice, "exact": self.exact, "f1": self.f1}


def read_questions(source: HubSource, data: Text, split: str) -> Iterator[Question]:
    """The questions of a split, or of all.

    A split that the dataset lacks is cut from its training examples, by the same rule as when a model is trained on
    their text.
    """
    source.prepare()
    shares = missing_shares(source, data)
    rows = empty = 0
    for native in source.splits:
        if split not in ("all", native) and not (native == "train" and split in shares):
            continue
        for example in source.examples(native):
            rows += 1
            text, question = source.text(example), source.question(example)
            if text is None or question is None:
                empty += 1
                continue
            actual = native
            if native == "train":
                actual = split_of(digest_of(text.encode("utf-8", "replace")), shares)
            if split in ("all", actual):
                yield question
    if empty:
        print_note(f"{empty:,} of {rows:,} questions of {data.dataset_name} have no answer and were left out.")


@dataclass(frozen=True)
class QuestionAnswerer:
    """Generates and chooses answers. prompts: token ids, in all methods."""

    loaded: Loaded
    plan: WalkPlan | None
    settings: Inference
    seed: int
    batch_size: int

    def answer_all(self, questions: Sequence[Question], question_format: QuestionFormat) -> tuple[list[Answer], int]:
        """The answers in the order of the questions, and the number of prompts longer than the context."""
        tokenizer = self.loaded.processor
        prompts = [[tokenizer.separator_id, *tokenizer.encode(question.prompt).tolist()] for question in questions]
        uniforms = self.uniforms(prompts)
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))  # batches of similar lengths
        answers: dict[int, Answer] = {}
        with progress("Asking", "questions", len(prompts)) as advance:
            for first in range(0, len(order), self.batch_size):
                numbers = order[first : first + self.batch_size]
                batch = [prompts[number] for number in numbers]
                texts = self.generate_answers(batch, [uniforms[number] for number in numbers], question_format.end)
                choices = self.choose_answers(batch, [questions[number].choices for number in numbers])
                for number, (text, finished), choice in zip(numbers, texts, choices, strict=True):
                    answers[number] = grade(questions[number], text, finished, choice, question_format.compare)
                advance(len(numbers))
        context = self.loaded.config[Transformer].context_length
        return [answers[number] for number in range(len(prompts))], sum(len(prompt) > context for prompt in prompts)

    def uniforms(self, prompts: Sequence[list[int]]) -> list[KeyedUniform]:
        """The random numbers of each answer; a repeated question gets others."""
        occurrences: Counter[tuple[int, ...]] = Counter()
        uniforms = []
        for prompt in prompts:
            uniforms.append(KeyedUniform(self.seed, prompt, occurrences[tuple(prompt)]))
            occurrences[tuple(prompt)] += 1
        return uniforms

    def generate_answers(
        self, prompts: Sequence[list[int]], uniforms: Sequence[KeyedUniform], end: str
    ) -> list[tuple[str, bool]]:
        """The text after each prompt, up to the pattern `end`, and whether it ended before --infer_max_gen_len."""
        tokenizer, settings = self.loaded.processor, self.settings
        sampling = Sampling(settings.infer_temp, settings.infer_topk, settings.infer_topp, excluded=(tokenizer.pad_id,))
        pattern = re.compile(end)
        answers: list[list[int]] = [[] for _ in prompts]
        finished = [False] * len(prompts)
        active = list(range(len(prompts)))
        decoder = make_decoder(self.loaded.model, self.plan, prompts, max_new_tokens=settings.infer_max_gen_len)
        for index in range(settings.infer_max_gen_len):
            uniform_B = torch.tensor([uniforms[number].at(index) for number in active], dtype=torch.float64)
            tokens = draw(decoder.predict().logits, uniform_B, sampling).tolist()
            for number, token in zip(active, tokens, strict=True):
                answers[number].append(token)
                ends = token == tokenizer.separator_id
                finished[number] = ends or bool(pattern.search(tokenizer.decode(answers[number])))
            rows = [row for row, number in enumerate(active) if not finished[number]]
            if not rows:
                break
            active = [active[row] for row in rows]
            decoder.continue_rows(tokens, rows)
        texts = [text_until(pattern, tokenizer.decode(tokens)) for tokens in answers]
        return list(zip(texts, finished, strict=True))

    def choose_answers(self, prompts: Sequence[list[int]], choices: Sequence[tuple[str, ...]]) -> list[str | None]:
        """The likeliest of the choices of each question; None where there are none."""
        tokenizer = self.loaded.processor
        pairs = [
            (prompt, tokenizer.encode(choice).tolist())
            for prompt, options in zip(prompts, choices, strict=True)
            for choice in options
        ]
        likelihoods: list[float] = []
        for first in range(0, len(pairs), self.batch_size):
            likelihoods += self.log_likelihoods(pairs[first : first + self.batch_size])
        likelihood = iter(likelihoods)
        scores = [[(next(likelihood), choice.strip()) for choice in options] for options in choices]
        return [max(options, key=lambda pair: pair[0])[1] if options else None for options in scores]

    def log_likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """The log-likelihood of each continuation after its prompt, in nats."""
        sums = [0.0] * len(pairs)
        active = [number for number, (_, continuation) in enumerate(pairs) if continuation]
        if not active:
            return sums
        longest = max(len(continuation) for _, continuation in pairs)
        decoder = make_decoder(
            self.loaded.model, self.plan, [pairs[number][0] for number in active], max_new_tokens=longest
        )
        for index in range(longest):
            log_BV = decoder.predict().logits.double().log_softmax(-1)
            tokens = [pairs[number][1][index] for number in active]
            for row, (number, token) in enumerate(zip(active, tokens, strict=True)):
                sums[number] += float(log_BV[row, token])
            rows = [row for row, number in enumerate(active) if len(pairs[number][1]) > index + 1]
            if not rows:
                break
            active = [active[row] for row in rows]
            decoder.continue_rows(tokens, rows)
        return sums


def text_until(end: re.Pattern[str], text: str) -> str:
    match = end.search(text)
    return (text[: match.end()] if match else text).strip()


def grade(question: Question, text: str, finished: bool, choice: str | None, compare: str) -> Answer:
    """Compare with every accepted answer, of which the nearest counts; an empty answer is never right."""
    words = normalize(text, compare)
    mark = "#### " if compare == "number" else ""
    accepted = [answer_words for answer in question.accepted if (answer_words := normalize(mark + answer, compare))]
    f1 = max((f1_score(words, answer_words) for answer_words in accepted), default=0.0)
    return Answer(question, text, finished, choice, words in accepted, f1)


def normalize(text: str, compare: str) -> list[str]:
    """The words of an answer that are compared.

    words: as in SQuAD, lower case without punctuation and articles. number: the one after the last ####, with 1,200
    equal to 1200.00. exact: all but white space.
    """
    if compare == "words":
        return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
    if compare == "number":
        _, mark, end = text.rpartition("####")
        match = NUMBER.search(end) if mark else None
        return [str(Decimal(match[1] + match[2].replace(",", "")).normalize())] if match else []
    return text.split()


def f1_score(words: list[str], accepted: list[str]) -> float:
    """F1 of the words in common."""
    common = sum((Counter(words) & Counter(accepted)).values())
    return 2 * common / (len(words) + len(accepted))


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Shares of right answers with 95% intervals, and their mean F1."""
    right = sum(answer.exact for answer in answers)
    low, high = wilson_interval(right, len(answers))
    result: dict[str, Any] = {"questions": len(answers), "exact": right / len(answers)}
    result |= {"exact_low": low, "exact_high": high, "f1": sum(answer.f1 for answer in answers) / len(answers)}
    choices = [answer.chose_right for answer in answers if answer.choice is not None]
    if choices:
        low, high = wilson_interval(sum(choices), len(choices))
        result |= {"choice_accuracy": sum(choices) / len(choices), "choice_low": low, "choice_high": high}
        result["questions_with_choices"] = len(choices)
    return result | {"unfinished": sum(not answer.finished for answer in answers)}


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share; unlike a bootstrap it has a width where none, or all, are right."""
    share, z = right / count, Z_95
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
