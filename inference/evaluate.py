"""`python -m inference evaluate`: how well a model predicts a text, or answers the questions of a dataset."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace

from config import RunConfig, SettingsError
from config.flags import FLAGS
from config.settings import Data, Inference
from core.errors import UserError
from data.errors import DataError
from data.sources import HUB, Source, find_source
from data.sources.hub import HubSource
from inference.commands import COMMANDS, Answering, Evaluate, Model
from inference.evaluation_report import Work, record, save, show_answers, show_text
from inference.loading import load, output_folder
from inference.questions import Asker, read_questions, summary
from inference.text_loss import empty_split, measure, other_text, own_text
from inference.thinking import make_plan
from training.resume import weights_path

LANDSCAPE_POINTS = 41
WITH_TEXT_FIELD = ("jsonl", "csv", "parquet", "arrow")
DRAWING = ("infer_max_gen_len", "infer_temp", "infer_topp", "infer_topk")
# What the door of the training takes with --execution_mode inference; the rest is the checkpoint's.
TAKEN = (
    *("execution_mode", "config", "only_test", "only_test_model_ckpt", "run_name", "logs_dir", "no_wandb", "seed"),
    *("gpus", "dataset_name", "dataset_dir", "text_field", "limit_test_batches", "batch_size_per_device"),
)


def main(model: Model, command: Evaluate, inference: Inference, preferred: str = "valid", share: float = 1.0) -> int:
    """preferred: the split, where none is named. share: of the rows, or questions, that are looked at."""
    asks = is_question_set(command.dataset_name) and not command.as_text
    check_flags(command, inference, asks)
    loaded = load(model)
    plan = make_plan(loaded.model, inference, model.seed)
    if inference.infer_plot_energy_landscape and plan is None:
        raise UserError("--infer_plot_energy_landscape: this model has no energy to draw; choose an EBT's run.")
    data = chosen_data(loaded.config.data, command)
    source, own = find_source(data), is_same(loaded.config.data, data) and not asks
    split = command.split or (preferred if own else first_split(source, preferred))
    folder = output_folder(loaded, inference)
    work = Work(loaded, command, inference, model.seed, plan, data, source, own, split, share, folder)
    print(f"{loaded.config.run.model_name} at step {loaded.step:,} ({loaded.checkpoint})")
    return ask(work) if asks else read(work)


def evaluate_checkpoint(config: RunConfig) -> int:
    """The same from `python train_model.py --only_test --execution_mode inference`, on the test split."""
    typed = {name for name, source in config.sources.items() if source == "command line"}
    used = {name for name, flag in FLAGS.items() if flag.group == "inference"} - {*COMMANDS["evaluate"].without}
    problems = [
        f"--{name} has no effect with --execution_mode inference: remove it; the checkpoint's run says the rest."
        for name in sorted(typed - used - {*TAKEN})
    ]
    if problems:
        raise SettingsError(problems)
    given = {
        name: getattr(config.data, name)
        for name in ("dataset_name", "dataset_dir", "text_field")
        if is_given(config, name)
    }
    limit, rows = config.debugging.limit_test_batches, config.trainer.batch_size_per_device
    if limit == 0:
        raise UserError("--limit_test_batches is 0: there is nothing to evaluate; give a number of batches or a share.")
    command = Evaluate(limit=int(limit) * rows if limit > 1 else 0, batch_size=rows, **given)
    wanted = asdict(config.inference)
    if not is_given(config, "infer_temp"):
        del wanted["infer_temp"]
    device = "cpu" if config.trainer.gpus == "none" else "auto"
    path = weights_path(config, "only_test_model_ckpt", str(config.testing.only_test_model_ckpt))
    if not path.is_file():
        raise UserError(f"--only_test_model_ckpt is {str(path)!r}: there is no such file; give a .ckpt file, or last.")
    model = Model(ckpt=str(path), logs_dir=config.logging.logs_dir, device=device, seed=config.trainer.seed)
    return main(model, command, Answering(**wanted), preferred="test", share=min(limit, 1.0))


def first_split(source: Source, preferred: str) -> str:
    """A split of its own that a dataset is evaluated on; all of it where it has none."""
    return next((name for name in (preferred, "valid", "test") if name in source.splits), "all")


def is_given(config: RunConfig, name: str) -> bool:
    return config.sources[name] in ("command line", "file")


def is_question_set(name: str | None) -> bool:
    dataset = HUB.get((name or "").partition(":")[0])
    return dataset is not None and dataset.asking is not None


def check_flags(command: Evaluate, inference: Inference, asks: bool) -> None:
    """Flags that would have no effect on what is asked for."""
    problems = []
    sets = ", ".join(name for name in HUB if is_question_set(name))
    if command.as_text and not is_question_set(command.dataset_name):
        problems.append(
            f"--as_text has no effect without a dataset of questions: remove it, or choose --dataset_name {sets}."
        )
    drawing = [name for name in DRAWING if getattr(inference, name) != getattr(Answering(), name)]
    if not asks:
        problems += [
            f"--{name} has no effect where nothing is generated: remove it, or ask with --dataset_name {sets}."
            for name in drawing
        ]
    elif inference.infer_temp == 0:
        problems += [
            f"--{name} has no effect with --infer_temp 0, which draws nothing: remove it, or give a temperature."
            for name in drawing
            if name in ("infer_topp", "infer_topk")
        ]
    if problems:
        raise SettingsError(problems)


def chosen_data(run: Data, command: Evaluate) -> Data:
    """The dataset that the flags name; what they leave open is the run's where it is the run's dataset."""
    data = run
    if command.dataset_name not in (None, run.dataset_name):
        data = replace(run, dataset_name=command.dataset_name, dataset_dir=None, text_field=Data().text_field)
    if command.dataset_dir is not None:
        data = replace(data, dataset_dir=command.dataset_dir)
    if command.text_field is not None:
        if data.dataset_name not in WITH_TEXT_FIELD:
            raise UserError(
                f"--text_field has no effect with --dataset_name {data.dataset_name}: "
                f"remove it, or choose {', '.join(WITH_TEXT_FIELD)}."
            )
        data = replace(data, text_field=command.text_field)
    return data if is_same(run, data) else replace(data, max_documents=0)


def is_same(run: Data, data: Data) -> bool:
    """Whether it is the run's own dataset, or its files at another place, those of the run being gone."""
    if replace(data, dataset_dir=run.dataset_dir) != run:
        return False
    return data.dataset_dir == run.dataset_dir or not is_there(run)


def is_there(data: Data) -> bool:
    try:
        find_source(data)
        return True
    except DataError:
        return False


def read(work: Work) -> int:
    """Measure the loss on a text."""
    loaded, command, limit = work.loaded, work.command, work.command.limit
    if work.own and work.split != "all":
        text = own_text(loaded, work.data, work.split, limit, work.share)
    else:
        text = other_text(loaded, work.source, work.data, work.split, limit, work.share)
    result = measure(loaded, work.plan, text, command.batch_size)
    recorded = record(work, result)  # before anything is shown: a pipe may close
    show_text(work, result, text)
    print(f"recorded    {recorded}")
    if work.inference.infer_plot_energy_landscape:
        row = text.rows.__getitems__([0])[0].tolist()
        *tokens, target = (token for token in row if token != loaded.tokenizer.pad_id)
        draw_landscape(work, tokens, target)
    return 0


def ask(work: Work) -> int:
    """Let the model answer questions."""
    assert isinstance(work.source, HubSource)
    asking, loaded, command = work.source.dataset.asking, work.loaded, work.command
    assert asking is not None
    questions = list(read_questions(work.source, work.data, work.split))
    if not questions:
        raise empty_split(work.split, work.data)
    found = len(questions)
    wanted = max(1, int(work.share * found))
    questions = questions[: min(wanted, command.limit or wanted)]
    start = time.perf_counter()
    asker = Asker(loaded, work.plan, work.inference, work.seed, command.batch_size)
    answers, cut = asker.answer_all(questions, asking, "Asking")
    result = {**summary(answers), "cut_prompts": cut, "seconds": time.perf_counter() - start}
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", work.data.dataset_name)
    file = work.folder / f"answers_{slug}_{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    save(file, [answer.row() for answer in answers])
    recorded = record(work, result)
    show_answers(work, answers, result, found)
    print(f"answers     {file}\nrecorded    {recorded}")
    if work.inference.infer_plot_energy_landscape:
        prompt = loaded.tokenizer.encode(questions[0].prompt).tolist()
        draw_landscape(work, [loaded.tokenizer.separator_id, *prompt], None)
    return 0


def draw_landscape(work: Work, tokens: list[int], target: int | None) -> None:
    """The energy around the first prediction that was looked at."""
    from inference.landscape import draw_for_text

    assert work.plan is not None
    tokens = tokens[-work.loaded.config.architecture.context_length :]
    path = work.folder / "landscape.png"
    draw_for_text(work.loaded, tokens, target, work.plan, LANDSCAPE_POINTS, path)
    print(f"landscape   {path}")
