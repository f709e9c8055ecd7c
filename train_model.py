"""Train a model: settings -> run folder -> data -> model -> training -> report.

`--help` and every mistake in the flags are answered before torch is imported.
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
    from training.peers import Peers


def main(argv: list[str]) -> int:
    """Exit status: 0 done, 1 failed or a check found something, 2 wrong settings, 3 --goal not met, 75 resumable, 130
    Ctrl-C."""
    sys.argv, argv = hide(sys.argv), hide(argv)
    try:
        config = parse_command_line(argv)
        if config.sources["recipe"] == "--mcmc_step_size":
            print("--mcmc_step_size without --recipe: energy flags that are not given have public EBT code's defaults.")
        debugging = config.debugging
        if debugging.print_config:
            from config.help import show
            from config.record import describe

            show(describe(config))
            return 0
        if config.run.execution_mode == "inference":
            from inference.commands import evaluate_from_training_flags

            return evaluate_from_training_flags(config)
        if debugging.plan or debugging.debug_dataloader or debugging.find_lr or debugging.find_batch_size:
            return inspect(config)
        from runs.notify import tell_the_end

        return tell_the_end(train, config)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; resume with --resume_training_ckpt last", file=sys.stderr)
        return 130


def inspect(config: RunConfig) -> int:
    """--plan, --debug_dataloader, --find_lr, --find_batch_size: they train nothing and make no run folder."""
    from runs import copy_output

    logs = Path(config.logging.logs_dir)
    copy_output(logs / "debug.log", pointer=logs / "console.log")

    from data.inspect import inspect_data
    from tasks import find_task
    from training.find import find_batch_size, find_lr
    from training.match_flops import match_flops
    from training.plan import plan
    from training.trainer import prepare_process

    prepare_process(config)
    task, debugging = find_task(config.run.task), config.debugging
    data = task.data(config)
    if debugging.debug_dataloader:
        return 0 if inspect_data(config, data) else 1
    config = match_flops(task, config, data)
    model = task.model(config, data.spec)
    if debugging.plan:
        print(plan(task, config, data, model))
    if debugging.find_batch_size:
        find_batch_size(task, config, data, model)
    if debugging.find_lr:
        find_lr(task, config, data, model, logs / "find_lr.png")
    return 0


def train(config: RunConfig) -> int:
    """Train, or only test, in a new run folder or in the one that is resumed."""
    from runs import RunFolder, copy_output, is_first_process
    from runs.notify import notifier
    from runs.process import signals
    from runs.ranks import check_processes, process_rank

    check_processes(config)
    signals.listen()
    folder = RunFolder.for_run(config)
    notifier.begin(config, folder.path)
    if is_first_process():
        copy_output(
            folder.path / config.logging.console_log_filename, pointer=Path(config.logging.logs_dir) / "console.log"
        )
    else:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (only the first process prints)
        copy_output(folder.path / f"rank_{process_rank()}.log")

    from training.peers import connect

    with connect(folder, config) as peers:
        return train_together(config, folder, peers)


def train_together(config: RunConfig, folder: RunFolder, peers: Peers) -> int:
    """What every process of the run does, once all are connected."""
    from data.module import save_data
    from runs import is_first_process
    from runs.pages import failure_on_page, write_after_run
    from tasks import find_task
    from training.errors import RunStopped
    from training.match_flops import match_flops
    from training.report import closing_report
    from training.resume import initial_weights, resume
    from training.trainer import Training, prepare_process

    config, checkpoint, step = resume(config, folder)
    config, weights = initial_weights(config)
    with failure_on_page(folder, config, step):
        prepare_process(config)
        task = find_task(config.run.task)
        data = task.data(config, folder.path, weights.run if weights else None)
        if is_first_process():
            save_data(data, folder.path)
        if checkpoint is None and not config.testing.only_test:
            config = match_flops(task, config, data, folder.path)
        model = task.model(config, data.spec)
        if weights is not None:
            weights.load_into(model)
    with folder.attempt(config, step) as attempt:
        calibrate = checkpoint is None and (weights is None or weights.own_step_size)
        training = Training(task, config, folder, data, model, attempt, peers, calibrate)
        print(training.summary_line())
        try:
            if not config.testing.only_test:
                training.fit(checkpoint)
            if config.testing.only_test or config.testing.run_testing_after_training:
                training.test()
        except Exception as error:
            stop = error if isinstance(error, RunStopped) else peers.crash(error)
            if stop is None:
                raise
            attempt.end(training.trainer.global_step, stop.cause)
            if is_first_process():
                print(f"\nthe run stopped: {stop}", file=sys.stderr)
                write_after_run(folder.path.parent.parent, folder.run_id)
            training.close(stop.status)
            return stop.status
        attempt.end(training.trainer.global_step, training.early_stop.cause)
    status = closing_report(task, config, folder, data, training)
    training.close(status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
