"""Train a model: settings -> run folder -> data -> model -> trainer -> what came of it.

`python train_model.py --help` lists the flags; it answers before torch is loaded, as do all mistakes in them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from config import RunConfig, parse_command_line
from core.errors import UserError
from core.notify import hide

if TYPE_CHECKING:
    from runs import RunFolder
    from training.company import Company


def main(argv: list[str]) -> int:
    """The exit status: 0 done, 1 the run failed or a check found something, 2 a mistake in the settings, 3 done but
    --goal was not met, 75 goes on, 130 stopped by hand."""
    sys.argv, argv = hide(sys.argv), hide(argv)
    try:
        config = parse_command_line(argv)
        if config.sources["recipe"] == "--mcmc_step_size" and config.run.model_name == "ebt":
            print("--mcmc_step_size without --recipe: energy flags that are not given have public EBT code's defaults.")
        debugging = config.debugging
        if debugging.print_config:
            from config.help import show
            from config.record import describe

            show(describe(config))
            return 0
        if config.run.execution_mode == "inference":
            from inference.evaluate import evaluate_checkpoint

            return evaluate_checkpoint(config)
        looks = debugging.plan or debugging.debug_dataloader or debugging.find_lr or debugging.find_batch_size
        if looks:
            return look(config)
        from runs.notify import tell_the_end

        return tell_the_end(train, config)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by hand; go on with --resume_training_ckpt last", file=sys.stderr)
        return 130


def look(config: RunConfig) -> int:
    """The tools that train nothing and leave no run behind."""
    from runs import copy_output

    logs = Path(config.logging.logs_dir)
    copy_output(logs / "debug.log", pointer=logs / "console.log")

    from data import build_data
    from data.inspect import inspect_data
    from models import build_model
    from training.find import find_batch_size, find_lr
    from training.plan import plan
    from training.trainer import prepare_process

    prepare_process(config)
    data = build_data(config)
    if config.debugging.debug_dataloader:
        return 0 if inspect_data(config, data) else 1
    tokens = data.tokenizer
    model = build_model(config, tokens.vocab_size, tokens.separator_id, tokens.pad_id)
    if config.debugging.plan:
        print(plan(config, data, model))
    if config.debugging.find_batch_size:
        find_batch_size(config, data, model)
    if config.debugging.find_lr:
        find_lr(config, data, model, logs / "find_lr.png")
    return 0


def train(config: RunConfig) -> int:
    """Train (or only test) a model in a run folder of its own, or go on in the one it was stopped in."""
    from runs import RunFolder, copy_output, is_first_process
    from runs.notify import notifier
    from runs.processes import check_processes, process_rank
    from runs.signals import listener

    check_processes(config)
    listener.listen()
    folder = RunFolder.for_run(config)
    notifier.begin(config, folder.path)
    if is_first_process():
        copy_output(
            folder.path / config.logging.console_log_filename, pointer=Path(config.logging.logs_dir) / "console.log"
        )
    else:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (one process speaks for all)
        copy_output(folder.path / f"rank_{process_rank()}.log")

    from training.company import meet

    with meet(folder, config) as company:
        return train_together(config, folder, company)


def train_together(config: RunConfig, folder: RunFolder, company: Company) -> int:
    """What every process of the run does, once all are there."""
    from data import build_data
    from data.kept import keep_data
    from models import build_model
    from runs import is_first_process
    from runs.pages import failure_on_page, write_after_run
    from training.report import closing_report
    from training.resume import initial_weights, take_up
    from training.stop import StopRun
    from training.trainer import Training, prepare_process

    config, checkpoint, step = take_up(config, folder)
    config, weights = initial_weights(config)
    with failure_on_page(folder, config, step):
        prepare_process(config)
        data = build_data(config, folder.path, weights.run if weights else None)
        if is_first_process():
            keep_data(data, folder.path)
        tokens = data.tokenizer
        model = build_model(config, tokens.vocab_size, tokens.separator_id, tokens.pad_id)
        if weights is not None:
            weights.load_into(model)
    with folder.attempt(config, step) as attempt:
        new_step_size = checkpoint is None and (weights is None or weights.own_step_size)
        training = Training(config, folder, data, model, attempt, company, calibrate=new_step_size)
        print(training.opening_line())
        try:
            if not config.testing.only_test:
                training.fit(checkpoint)
            if config.testing.only_test or config.testing.run_testing_after_training:
                training.test()
        except Exception as error:
            stop = error if isinstance(error, StopRun) else company.crash(error)
            if stop is None:
                raise
            attempt.end(training.trainer.global_step, stop.cause)
            if is_first_process():
                print(f"\nthe run stopped: {stop}", file=sys.stderr)
                write_after_run(folder.path.parent.parent, folder.run_id)
            training.close(stop.status)
            return stop.status
        attempt.end(training.trainer.global_step, training.ending.cause)
    status = closing_report(config, folder, data, training)
    training.close(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
