"""`python -m inference evaluate`: the loss of a model on a text, or its answers to the questions of a dataset."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from config import SettingsError
from config.settings import Inference, Text, Transformer
from core.errors import UserError
from core.text import plural, printable_lines
from data.language.sources import HUB, Source, find_source
from data.language.sources.hub_dataset import HubSource
from inference.evaluate import changed_settings, new_table, number_to_evaluate, record_evaluation, save_rows
from inference.language.generator import unused_sampling_flags
from inference.language.questions import Answer, QuestionAnswerer, read_questions, summary
from inference.language.text_loss import TextRows, bits_per_nat, empty_split, measure_text, text_of_dataset, text_of_run
from inference.loading import Loaded, ModelFlags, load, output_folder
from inference.thinking import WalkPlan, plan_from_flags
from tasks.language_commands import EvaluateFlags, GreedyInference

LANDSCAPE_POINTS = 41
WITH_TEXT_FIELD = ("jsonl", "csv", "parquet", "arrow")
SAMPLING_FLAGS = ("infer_max_gen_len", "infer_temp", "infer_topp", "infer_topk")
ANSWERS_PRINTED, ANSWER_WIDTH = 3, 100


@dataclass(frozen=True)
class EvaluationJob:
    """One evaluation. is_own_data: whether the data is that of the run; share: of the rows or questions to evaluate."""

    loaded: Loaded
    command: EvaluateFlags
    inference: Inference
    seed: int
    plan: WalkPlan | None
    data: Text
    source: Source
    is_own_data: bool
    split: str
    share: float
    folder: Path

    @property
    def title(self) -> str:
        part = "all" if self.split == "all" else f"{self.split} split"
        return f"{self.data.dataset_name}, {part}"


def main(
    model: ModelFlags, command: EvaluateFlags, inference: Inference, default_split: str = "valid", share: float = 1.0
) -> int:
    """default_split: without --split. share: of the rows, or questions, to evaluate."""
    has_questions = is_question_set(command.dataset_name) and not command.as_text
    check_flags(command, inference, has_questions)
    loaded = load(model)
    plan = plan_from_flags(loaded.model, inference, model.seed)
    if inference.infer_plot_energy_landscape and plan is None:
        raise UserError("--infer_plot_energy_landscape: this model has no energy to draw; choose an EBT's run.")
    data = select_data(loaded.config[Text], command)
    source, is_own_data = find_source(data), is_run_data(loaded.config[Text], data) and not has_questions
    split = command.split or (default_split if is_own_data else first_split(source, default_split))
    folder = output_folder(loaded, inference)
    job = EvaluationJob(loaded, command, inference, model.seed, plan, data, source, is_own_data, split, share, folder)
    print(f"{loaded.config.run.model_name} at step {loaded.step:,} ({loaded.checkpoint})")
    return evaluate_questions(job) if has_questions else evaluate_text(job)


def first_split(source: Source, default_split: str) -> str:
    """The split of a dataset to evaluate; all of it where it has none of its own."""
    return next((name for name in (default_split, "valid", "test") if name in source.splits), "all")


def is_question_set(name: str | None) -> bool:
    dataset = HUB.get((name or "").partition(":")[0])
    return dataset is not None and dataset.question_format is not None


def check_flags(command: EvaluateFlags, inference: Inference, has_questions: bool) -> None:
    """Refuse flags that would have no effect."""
    problems = []
    question_sets = ", ".join(name for name in HUB if is_question_set(name))
    if command.as_text and not is_question_set(command.dataset_name):
        problems.append(
            "--as_text has no effect without a dataset of questions: "
            f"remove it, or choose --dataset_name {question_sets}."
        )
    sampling = [name for name in SAMPLING_FLAGS if getattr(inference, name) != getattr(GreedyInference(), name)]
    if not has_questions:
        problems += [
            f"--{name} has no effect where nothing is generated: remove it, or ask with --dataset_name {question_sets}."
            for name in sampling
        ]
    else:
        problems += unused_sampling_flags(inference)
    if problems:
        raise SettingsError(problems)


def select_data(run: Text, command: EvaluateFlags) -> Text:
    """The dataset that the flags name, with the settings of the run for what they leave open."""
    data = run
    if command.dataset_name not in (None, run.dataset_name):
        data = replace(run, dataset_name=command.dataset_name, dataset_dir=None, text_field=Text().text_field)
    if command.dataset_dir is not None:
        data = replace(data, dataset_dir=command.dataset_dir)
    if command.text_field is not None:
        if data.dataset_name not in WITH_TEXT_FIELD:
            raise UserError(
                f"--text_field has no effect with --dataset_name {data.dataset_name}: "
                f"remove it, or choose {', '.join(WITH_TEXT_FIELD)}."
            )
        data = replace(data, text_field=command.text_field)
    return data if is_run_data(run, data) else replace(data, max_documents=0)


def is_run_data(run: Text, data: Text) -> bool:
    """Whether it is the dataset of the run; files at another path count where those of the run are gone."""
    if replace(data, dataset_dir=run.dataset_dir) != run:
        return False
    return data.dataset_dir == run.dataset_dir or not is_available(run)


def is_available(data: Text) -> bool:
    try:
        find_source(data)
        return True
    except UserError:
        return False


def evaluate_text(job: EvaluationJob) -> int:
    """Measure the loss on a text."""
    loaded, command, limit = job.loaded, job.command, job.command.limit
    if job.is_own_data and job.split != "all":
        text = text_of_run(loaded, job.data, job.split, limit, job.share)
    else:
        text = text_of_dataset(loaded, job.source, job.data, job.split, limit, job.share)
    result = measure_text(loaded, job.plan, text, command.batch_size)
    record_path = record(job, result)  # before printing, as a pipe may close
    show_text(job, result, text)
    print(f"recorded    {record_path}")
    if job.inference.infer_plot_energy_landscape:
        row = text.rows.__getitems__([0])["input_ids"][0].tolist()
        *tokens, target = (token for token in row if token != loaded.processor.pad_id)
        draw_landscape(job, tokens, target)
    return 0


def evaluate_questions(job: EvaluationJob) -> int:
    """Generate and grade the answers to questions."""
    assert isinstance(job.source, HubSource)
    question_format, loaded, command = job.source.dataset.question_format, job.loaded, job.command
    assert question_format is not None
    questions = list(read_questions(job.source, job.data, job.split))
    if not questions:
        raise empty_split(job.split, job.data)
    total = len(questions)
    questions = questions[: number_to_evaluate(total, command.limit, job.share)]
    start = time.perf_counter()
    answerer = QuestionAnswerer(loaded, job.plan, job.inference, job.seed, command.batch_size)
    answers, cut = answerer.answer_all(questions, question_format)
    result = {**summary(answers), "cut_prompts": cut, "seconds": time.perf_counter() - start}
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", job.data.dataset_name)
    file = job.folder / f"answers_{slug}_{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    save_rows(file, [answer.row() for answer in answers])
    record_path = record(job, result)
    show_answers(job, answers, result, total)
    print(f"answers     {file}\nrecorded    {record_path}")
    if job.inference.infer_plot_energy_landscape:
        prompt = loaded.processor.encode(questions[0].prompt).tolist()
        draw_landscape(job, [loaded.processor.separator_id, *prompt], None)
    return 0


def draw_landscape(job: EvaluationJob, tokens: list[int], target: int | None) -> None:
    """Draw the energy around the first prediction."""
    from inference.language.landscape import save_landscape

    assert job.plan is not None
    tokens = tokens[-job.loaded.config[Transformer].context_length :]
    path = job.folder / "landscape.png"
    save_landscape(job.loaded, tokens, target, job.plan, LANDSCAPE_POINTS, path)
    print(f"landscape   {path}")


def show_text(job: EvaluationJob, result: dict[str, Any], text: TextRows) -> None:
    """Print the table of a text and, for an EBT, losses and energies along the walks."""
    targets = int(result["targets"])
    of_all = f" of {text.rows.num_units:,}" if text.whole else ""
    part = (
        f"{targets:,} tokens"
        if text.whole and text.count == len(text.rows)
        else f"the first {targets:,}{of_all} tokens"
    )
    bits = bits_per_nat(text.rows)
    low, high = result.get("loss_low"), result.get("loss_high")
    table = new_table(*(["95% interval"] if low is not None else []))
    print(f"\n{job.title}, {part}")

    def add(name: str, value: float, from_loss: Callable[[float], float]) -> None:
        interval = [] if low is None or high is None else [f"{from_loss(low):.4f} to {from_loss(high):.4f}"]
        table.add_row(name, f"{value:.4f}", *interval)

    add("nats per token", result["loss"], lambda loss: loss)
    add("bits per byte", result["bits_per_byte"], lambda loss: loss * bits)
    add("perplexity", result["perplexity"], lambda loss: math.exp(min(loss, 700)))
    table.add_row("accuracy", f"{result['accuracy']:.2%}")
    table.add_row("top-5 accuracy", f"{result['top5']:.2%}")
    Console().print(table)
    if not math.isfinite(result["loss"]):
        print(
            "the loss is not finite: the walk or the training diverged; take shorter steps with "
            "--infer_ebt_override_alpha, or choose an earlier --ckpt"
        )
    elif low is not None:
        unit = result["interval_over"]
        reason = f", since they are of {plural(result['documents'], 'document')} only" if unit == "rows" else ""
        print(f"95% interval: bootstrap over {result[unit]:,} {unit}{reason}")
    if job.plan is None:
        return
    losses = {name: value for name, value in result.items() if name.startswith("loss_step_")}
    by_step = ", ".join(f"{name.removeprefix('loss_step_')}: {value:.4f}" for name, value in losses.items())
    average = f", mean of {job.plan.candidates} candidates" if job.plan.candidates > 1 else ""
    print(f"loss after steps {by_step}{average}; thinking gains {result['thinking_gain']:.4f} nats per token")
    print(f"energy from {result['energy_first']:.4f} to {result['energy_last']:.4f}, mean of all tokens")
    if "steps" in result:
        shares = ", ".join(f"{step}: {count / targets:.1%}" for step, count in result["steps"].items())
        print(f"steps taken {result['mean_steps']:.2f} on average ({shares} of the tokens)")


def show_answers(job: EvaluationJob, answers: list[Answer], result: dict[str, Any], total: int) -> None:
    """Print the table of a question set, remarks on it, and the first answers."""
    all_questions = plural(total, "question")
    part = all_questions if len(answers) == total else f"the first {len(answers):,} of {all_questions}"
    table = new_table("95% interval")
    print(f"\n{job.title}, {part}")
    table.add_row("exact match", f"{result['exact']:.2%}", f"{result['exact_low']:.2%} to {result['exact_high']:.2%}")
    table.add_row("F1", f"{result['f1']:.2%}")
    if "choice_accuracy" in result:
        interval = f"{result['choice_low']:.2%} to {result['choice_high']:.2%}"
        table.add_row("likeliest choice is right", f"{result['choice_accuracy']:.2%}", interval)
    Console().print(table)
    if job.split not in (*job.source.splits, "all"):
        print(f"the {job.split} split is cut from the training examples: {job.data.dataset_name} has none of its own")
    if result["cut_prompts"]:
        context = job.loaded.config[Transformer].context_length
        cut = plural(result["cut_prompts"], "prompt")
        print(f"longer than the context of {context} tokens, so that only the end was read: {cut}")
    if result["unfinished"]:
        longest = job.inference.infer_max_gen_len
        print(f"cut off at --infer_max_gen_len {longest}: {plural(result['unfinished'], 'answer')}")
    for answer in answers[:ANSWERS_PRINTED]:
        accepted = " | ".join(answer.question.accepted)
        for name, text in {
            "prompt": answer.question.prompt[-ANSWER_WIDTH:],
            "answer": answer.text,
            "right": accepted,
        }.items():
            line = printable_lines(text.replace("\n", " "), sys.stdout.encoding)[0]
            print(f"  {name:6} | {line[:ANSWER_WIDTH]}")
        print()


def record(job: EvaluationJob, result: dict[str, Any]) -> Path:
    """Append the evaluation to evaluation.jsonl. -> its path"""
    dataset = {"dataset": job.data.dataset_name, "dataset_dir": job.data.dataset_dir, "split": job.split}
    settings = changed_settings(job.command, job.inference, job.seed, job.share)
    return record_evaluation(job.loaded, job.folder, dataset, settings, result)
