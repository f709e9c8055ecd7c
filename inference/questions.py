"""Asking a model: its answers to the questions of a dataset, and how good they are."""

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

from config.settings import Data, Inference
from core.progress import notice, progress
from data.sources.hub import Asking, HubSource, Question
from data.store import digest_of, missing_shares, place
from inference.decoder import make_decoder
from inference.loading import Loaded
from inference.sampling import Chance, Sampling, draw
from inference.thinking import Plan

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
NUMBER = re.compile(r"(-?)\$?(\d[\d,]*(?:\.\d+)?|\.\d+)")
NORMAL = 1.959964  # of which 95% of a normal distribution lie within


@dataclass(frozen=True)
class Answer:
    """What the model said. over: it came to an end by itself; choice: the likeliest of the choices."""

    question: Question
    text: str
    over: bool
    choice: str | None
    exact: bool
    f1: float

    @property
    def chose_right(self) -> bool:
        return self.choice in [answer.strip() for answer in self.question.accepted]

    def row(self) -> dict[str, Any]:
        chosen = {"choice": self.choice} if self.choice is not None else {}
        asked = {"prompt": self.question.prompt, "answer": self.text, "accepted": list(self.question.accepted)}
        return {**asked, **chosen, "exact": self.exact, "f1": self.f1}


def read_questions(source: HubSource, data: Data, split: str) -> Iterator[Question]:
    """The questions of a split, or of all.

    A split that the dataset has is taken as it is; one that it lacks is cut from the training examples, by the same
    rule as when a model is trained on their text.
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
            found = native
            if native == "train":
                found = place(digest_of(text.encode("utf-8", "replace")), shares)
            if split in ("all", found):
                yield question
    if empty:
        notice(f"{empty:,} of {rows:,} questions of {data.dataset_name} have no answer and were left out.")


@dataclass(frozen=True)
class Asker:
    """A model that is asked. prompts are token ids from here on."""

    loaded: Loaded
    plan: Plan | None
    settings: Inference
    seed: int
    batch_size: int

    def answer_all(self, questions: Sequence[Question], asking: Asking, title: str) -> tuple[list[Answer], int]:
        """The answers in the order of the questions, and how many prompts were longer than the context."""
        words = self.loaded.tokenizer
        prompts = [[words.separator_id, *words.encode(question.prompt).tolist()] for question in questions]
        chances = self.chances(prompts)
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))  # batches of similar lengths
        answers: dict[int, Answer] = {}
        with progress(title, "questions", len(prompts)) as advance:
            for first in range(0, len(order), self.batch_size):
                numbers = order[first : first + self.batch_size]
                asked = [prompts[number] for number in numbers]
                said = self.say(asked, [chances[number] for number in numbers], asking.end)
                chosen = self.choose(asked, [questions[number].choices for number in numbers])
                for number, (text, over), choice in zip(numbers, said, chosen, strict=True):
                    answers[number] = graded(questions[number], text, over, choice, asking.compare)
                advance(len(numbers))
        context = self.loaded.config.architecture.context_length
        return [answers[number] for number in range(len(prompts))], sum(len(prompt) > context for prompt in prompts)

    def chances(self, prompts: Sequence[list[int]]) -> list[Chance]:
        """The draws of each answer; a question that is asked again gets others."""
        asked: Counter[tuple[int, ...]] = Counter()
        found = []
        for prompt in prompts:
            found.append(Chance(self.seed, prompt, asked[tuple(prompt)]))
            asked[tuple(prompt)] += 1
        return found

    def say(self, prompts: Sequence[list[int]], chances: Sequence[Chance], end: str) -> list[tuple[str, bool]]:
        """What the model says after each prompt, and whether it came to an end before --infer_max_gen_len."""
        words, settings = self.loaded.tokenizer, self.settings
        how = Sampling(settings.infer_temp, settings.infer_topk, settings.infer_topp, never=(words.pad_id,))
        pattern = re.compile(end)
        said: list[list[int]] = [[] for _ in prompts]
        over = [False] * len(prompts)
        going = list(range(len(prompts)))
        decoder = make_decoder(self.loaded.model, self.plan, prompts, room=settings.infer_max_gen_len)
        for spot in range(settings.infer_max_gen_len):
            uniform_B = torch.tensor([chances[number].at(spot) for number in going], dtype=torch.float64)
            tokens = draw(decoder.predict().logits, uniform_B, how).tolist()
            for number, token in zip(going, tokens, strict=True):
                said[number].append(token)
                over[number] = token == words.separator_id or bool(pattern.search(words.decode(said[number])))
            rows = [row for row, number in enumerate(going) if not over[number]]
            if not rows:
                break
            going = [going[row] for row in rows]
            decoder.go_on(tokens, rows)
        return [(until(pattern, words.decode(tokens)), over[number]) for number, tokens in enumerate(said)]

    def choose(self, prompts: Sequence[list[int]], choices: Sequence[tuple[str, ...]]) -> list[str | None]:
        """Of each question's choices the one that the model finds the likeliest; None where there are none."""
        words = self.loaded.tokenizer
        pairs = [
            (prompt, words.encode(choice).tolist())
            for prompt, some in zip(prompts, choices, strict=True)
            for choice in some
        ]
        found: list[float] = []
        for first in range(0, len(pairs), self.batch_size):
            found += self.log_likelihoods(pairs[first : first + self.batch_size])
        likely = iter(found)
        scored = [[(next(likely), choice.strip()) for choice in some] for some in choices]
        return [max(some, key=lambda pair: pair[0])[1] if some else None for some in scored]

    def log_likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """How likely each continuation is after its prompt, in nats."""
        sums = [0.0] * len(pairs)
        going = [number for number, (_, continuation) in enumerate(pairs) if continuation]
        if not going:
            return sums
        longest = max(len(continuation) for _, continuation in pairs)
        decoder = make_decoder(self.loaded.model, self.plan, [pairs[number][0] for number in going], room=longest)
        for spot in range(longest):
            log_BV = decoder.predict().logits.double().log_softmax(-1)
            tokens = [pairs[number][1][spot] for number in going]
            for row, (number, token) in enumerate(zip(going, tokens, strict=True)):
                sums[number] += float(log_BV[row, token])
            rows = [row for row, number in enumerate(going) if len(pairs[number][1]) > spot + 1]
            if not rows:
                break
            going = [going[row] for row in rows]
            decoder.go_on(tokens, rows)
        return sums


def until(end: re.Pattern[str], text: str) -> str:
    found = end.search(text)
    return (text[: found.end()] if found else text).strip()


def graded(question: Question, text: str, over: bool, choice: str | None, compare: str) -> Answer:
    """Held against every accepted answer, of which the nearest counts; an answer that says nothing is never right."""
    said = compared(text, compare)
    mark = "#### " if compare == "number" else ""
    accepted = [wanted for answer in question.accepted if (wanted := compared(mark + answer, compare))]
    f1 = max((overlap(said, wanted) for wanted in accepted), default=0.0)
    return Answer(question, text, over, choice, said in accepted, f1)


def compared(text: str, how: str) -> list[str]:
    """What counts of an answer, as words.

    words: as SQuAD has it, small letters without punctuation and articles. number: the one after the last ####, so
    that 1,200 is 1200.00. exact: all but white space.
    """
    if how == "words":
        return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
    if how == "number":
        _, mark, end = text.rpartition("####")
        found = NUMBER.search(end) if mark else None
        return [str(Decimal(found[1] + found[2].replace(",", "")).normalize())] if found else []
    return text.split()


def overlap(said: list[str], wanted: list[str]) -> float:
    """F1 of the words that both have."""
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted))


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """What the answers come to, with 95% intervals of the shares."""
    right = sum(answer.exact for answer in answers)
    low, high = share_interval(right, len(answers))
    result: dict[str, Any] = {"questions": len(answers), "exact": right / len(answers)}
    result |= {"exact_low": low, "exact_high": high, "f1": sum(answer.f1 for answer in answers) / len(answers)}
    chosen = [answer.chose_right for answer in answers if answer.choice is not None]
    if chosen:
        low, high = share_interval(sum(chosen), len(chosen))
        result |= {"choice_accuracy": sum(chosen) / len(chosen), "choice_low": low, "choice_high": high}
        result["questions_with_choices"] = len(chosen)
    return result | {"unfinished": sum(not answer.over for answer in answers)}


def share_interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share; unlike a bootstrap it has a width where none, or all, are right."""
    share, z = right / count, NORMAL
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
