"""Usage: sampled beside the run and never in its way, summed up in true numbers and words that say what to change."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import RunConfig, parse_command_line
from core.files import read_rows
from runs.run import Run
from training.usage import (
    Machine,
    Processes,
    SamplingRate,
    Usage,
    drop_impossible,
    gpu_sample,
    leak_verdict,
    live_tensors,
    memory_limits,
    stats_lines,
    summarise,
)

MB = 2**20
GB = 2**30
CONFIG = parse_command_line([])
MACHINE = Machine(cores=4, memory_bytes=16 * GB, allowed_bytes=16 * GB, free_bytes=12 * GB, row_bytes=10 * MB)


def rows(count: int = 100, growth: float = 0.0, tensors: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Samples of a run; growth: bytes of memory a step, tensors: live ones more a step."""
    return [
        {
            **{"time": 1e9 + 10 * number, "step": 20 * number, "attempt": 1, "cpu_percent": 180.0},
            **{"memory_bytes": int(2 * GB + growth * 20 * number + 1000 * (number % 3)), "loader_wait_share": 0.01},
            **{"read_bytes": 5 * number, "written_bytes": 7 * number},
            **({"tensors": 500 + tensors * 20 * number} if number % 10 == 0 else {}),
            **more,
        }
        for number in range(count)
    ]


def verdicts(samples: list[dict[str, Any]], machine: Machine = MACHINE, config: RunConfig = CONFIG) -> dict[str, str]:
    return {verdict["kind"]: verdict["text"] for verdict in summarise(samples, machine, config)["verdicts"]}


def test_a_run_that_is_well_gets_numbers_and_good_words() -> None:
    summary = summarise(rows(), MACHINE, CONFIG)
    stats = summary["stats"]
    assert (stats["samples"], stats["cpu_percent_mean"], stats["memory_bytes_peak"]) == (100, 180.0, 2 * GB + 2000)
    assert (stats["read_bytes"], stats["written_bytes"], stats["memory_limit_bytes"]) == (495, 693, 16 * GB)
    assert all(verdict["good"] for verdict in summary["verdicts"]) and "gpu_percent_mean" not in stats
    (line,) = stats_lines(summary)
    assert line == "stats       about 0 units/s, CPU 180 of 400 %, memory 2.0 GiB of 16.0 GiB"


def test_the_end_of_a_run_says_only_what_is_not_well() -> None:
    starved = replace(MACHINE, unit="tokens", units_per_second=4321.0, wait_share=0.34)
    first, second = stats_lines(summarise(rows(), starved, CONFIG))
    assert first.startswith("stats       about 4,321 tokens/s, ")
    assert second.startswith("!!          starved by the loader")


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        ("", "try --num_workers 1 (now 0);"),
        ("--num_workers 2", "try --num_workers 3 (now 2);"),
        ("--num_workers 3", "try --prefetch_factor 4 (now 2);"),
        ("--no-pretokenize_dataset", "try --pretokenize_dataset, or --num_workers 1 (now 0);"),
    ],
)
def test_a_starved_run_is_told_what_to_change(flags: str, change: str) -> None:
    machine = Machine(4, 16 * GB, 16 * GB, 12 * GB, wait_share=0.34)
    text = verdicts(rows(), machine, parse_command_line(flags.split()))["loader"]
    assert text.startswith("starved by the loader: 34% of the time was spent on waiting for batches") and change in text


def test_room_in_memory_is_told_as_a_batch() -> None:
    text = verdicts(rows())["memory"]
    assert "2.0 GiB at the most, and 12.0 GiB of 16.0 GiB stayed free" in text
    assert "--batch_size_per_device 512 or so (now 16)" in text  # 16 + 0.8 * 12 GiB / 10 MiB, down to a power of two
    full = Machine(4, 16 * GB, 16 * GB, GB, row_bytes=10 * MB)
    assert verdicts(rows(), full)["memory"].startswith("memory is nearly full: 1.0 GiB of 16.0 GiB were left free")
    allowed = Machine(4, 16 * GB, 2.1 * GB, 12 * GB, row_bytes=10 * MB)
    assert "nearly full" in verdicts(rows(), allowed)["memory"], "what Slurm allows is the limit"


def test_a_gpu_is_judged_by_its_own_memory() -> None:
    samples = rows(gpu_percent=90.0, gpu_memory_bytes=70 * GB)
    machine = Machine(4, 16 * GB, 16 * GB, GB, gpu_memory_bytes=80 * GB, row_bytes=100 * MB)
    summary = summarise(samples, machine, CONFIG)
    (text,) = (verdict["text"] for verdict in summary["verdicts"] if verdict["kind"] == "memory")
    assert text.startswith("GPU memory has room: 70.0 GiB at the most, and 10.0 GiB of 80.0 GiB stayed free")
    assert next(stats_lines(summary)).endswith(", GPU 90 %, its memory 70.0 GiB of 80.0 GiB")


def test_a_leak_is_told_apart_into_data_and_tensors() -> None:
    assert leak_verdict(rows()) is None and leak_verdict(rows(5, growth=MB)) is None and leak_verdict([]) is None
    data, tensors = leak_verdict(rows(growth=MB / 2)), leak_verdict(rows(growth=MB / 2, tensors=1))
    assert data is not None and data.text.startswith("leak suspected, 500 MiB in 1,000 steps (data: the number of")
    assert tensors is not None and "(tensors: " in tensors.text and "without .detach()" in tensors.text
    early = rows(growth=MB / 2)
    for row in early[30:]:
        row["memory_bytes"] = early[30]["memory_bytes"]
    assert leak_verdict(early) is None, "a pool that fills is no leak"


def test_a_new_process_is_not_a_leak_that_ended() -> None:
    second = [{**row, "attempt": 2} for row in rows()]
    assert leak_verdict([*rows(growth=MB), *second]) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cpu_percent": 900.0}, "CPU of 900 % on 4 core(s) cannot be true (1 of 100 samples): they are ignored."),
        ({"memory_bytes": 17 * GB}, "cannot be true"),
        ({"loader_wait_share": -0.5}, "-0.5 of the time spent on waiting for batches cannot be true"),
        ({"cpu_percent": float("nan")}, "CPU of nan % on 4 core(s) cannot be true"),
    ],
)
def test_what_cannot_be_true_is_said_and_left_out(wrong: dict[str, float], words: str) -> None:
    samples = rows()
    samples[50] |= wrong
    summary = summarise(samples, MACHINE, CONFIG)
    (text,) = (verdict["text"] for verdict in summary["verdicts"] if verdict["kind"] == "impossible")
    assert words in text
    assert summary["stats"]["cpu_percent_peak"] == 180.0 and summary["stats"]["memory_bytes_peak"] < 3 * GB


number = st.floats() | st.integers(-(2**70), 2**70)
sample = st.fixed_dictionaries(
    {"step": st.integers(0, 10**6), "attempt": st.integers(1, 3)},
    optional=dict.fromkeys(("cpu_percent", "memory_bytes", "loader_wait_share", "gpu_percent", "read_bytes"), number),
)


@given(st.lists(sample, max_size=30))
def test_no_samples_break_the_summary(samples: list[dict[str, Any]]) -> None:
    summary = summarise(samples, MACHINE, CONFIG)
    assert {"stats", "verdicts"} == summary.keys() and list(stats_lines(summary)) is not None
    possible, _ = drop_impossible(samples, MACHINE)
    assert all(0 <= row.get("memory_bytes", 0) <= MACHINE.memory_bytes for row in possible)


def test_processes_are_measured_with_their_children() -> None:
    processes = Processes()
    held = bytearray(64 * MB)
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    sample = processes.sample()
    assert 10 < sample["cpu_percent"] < 100 * 1.5 and sample["memory_bytes"] > len(held)
    assert sample["read_bytes"] >= 0 and sample["written_bytes"] >= 0


def test_live_tensors_are_counted() -> None:
    gc.collect()
    before = live_tensors()
    held = [torch.zeros(1) for _ in range(50)]
    gc.collect()
    assert live_tensors() >= before + len(held)


def test_no_thread_looks_at_all_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by another thread, a tuple that training is building makes training fail."""
    counting: list[str] = []

    def count() -> int:
        counting.append(threading.current_thread().name)
        return 1

    monkeypatch.setattr("training.usage.live_tensors", count)
    run_for(sampler(tmp_path), 0.2)
    assert counting and set(counting) == {threading.main_thread().name}


def test_the_memory_limit_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2048")
    assert 2 * GB in list(memory_limits())


def test_gpus_are_asked_and_a_driver_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_sample() == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 40 + 20 * device)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda device: (device + 1) * GB)
    assert gpu_sample() == {"gpu_percent": 50, "gpu_memory_bytes": 2 * GB}
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 1 / 0)
    assert gpu_sample() == {}


EVERY_FEW_MILLISECONDS = SamplingRate(shortest=0.005, longest=0.005, cost_factor=1, tensor_seconds=0.0)


def sampler(folder: Path, rate: SamplingRate = EVERY_FEW_MILLISECONDS) -> Usage:
    recorder: Any = SimpleNamespace(attempt=1, waited=0.0, seconds=0.0, units=0, unit="tokens")
    return Usage(folder, CONFIG, recorder, row_bytes=0.0, rate=rate)


def run_for(watch: Usage, seconds: float) -> None:
    watch.begin()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        watch.step += 1
        watch.recorder.seconds += 0.01
        watch.recorder.waited += 0.005
        watch.count_tensors()
        time.sleep(0.01)
    watch.end()


def test_the_thread_samples_and_dies_with_the_run(tmp_path: Path) -> None:
    watch = sampler(tmp_path)
    run_for(watch, 0.4)
    samples = read_rows(tmp_path / "usage.jsonl")
    assert len(samples) > 1 and samples[0]["loader_wait_share"] == pytest.approx(0.5)
    names = {"time", "step", "cpu_percent", "memory_bytes", "read_bytes", "written_bytes"}
    assert all(names <= sample.keys() for sample in samples) and any("tensors" in sample for sample in samples)
    assert not [thread for thread in threading.enumerate() if thread.name == "usage"]
    assert Run(tmp_path).read("usage.json")["stats"]["samples"] == len(samples)
    watch.end()  # as on_exception after on_train_end


def test_a_month_of_samples_is_thinned_out(tmp_path: Path) -> None:
    watch, processes = sampler(tmp_path, SamplingRate(most=8)), Processes()
    for step in range(1, 101):
        if step % watch.factor == 0:  # as the thread waits so many times longer
            watch.step = step
            watch.take_sample(processes)
    samples = read_rows(tmp_path / "usage.jsonl")
    assert samples == watch.rows and watch.factor == 16
    assert [sample["step"] for sample in samples] == [16, 32, 48, 64, 80, 96], "all over the run"


def test_what_goes_wrong_costs_samples_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = sampler(tmp_path / "nowhere")  # nothing can be written there, as on a full disk
    run_for(full, 0.1)
    assert full.rows and full.summary["stats"]["samples"] == len(full.rows)
    broken = sampler(tmp_path)
    monkeypatch.setattr(Processes, "sample", lambda self: 1 / 0)
    run_for(broken, 0.1)
    assert broken.rows == [] and broken.summary["stats"]["samples"] == 0
