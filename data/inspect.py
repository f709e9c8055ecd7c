"""What --debug_dataloader does: goes through the data, prints what it finds, and says whether something is wrong."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.utils.data import Dataset

from config.settings import RunConfig
from data.module import DataModule, RowLoader
from data.rows import PackedRows
from data.stream import evaluation_batches
from data.tokenizers import Tokenizer
from data.watch import SyntheticRows, Watch, watch

SCAN_BATCH = 256
MOST_SCANNED_TOKENS = 50_000_000
MOST_BATCHES = 1_000_000  # bounds the list of batches, not the time
PLAIN = 4  # a row of so few different tokens (padding, blanks, ruled lines) repeats by nature
TELLING_BYTES = 128  # rows of less text repeat by chance: common phrases, indented code
CHANCE_SHARE = 0.5
WORKERS_TRIED = (0, 2, 4)
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One check's verdict (ok, warning or problem), and what to do about it."""

    check: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Scan:
    """What going through the rows of a split found.

    hashes: uint64 [rows], equal for equal rows. telling: bool [rows], false where a row is too plain to compare.
    """

    num_rows: int
    hashes: np.ndarray
    telling: np.ndarray
    pad_share: float
    out_of_range: tuple[int, int] | None  # row and token id of the first


def inspect_data(config: RunConfig, data: DataModule, console: Console | None = None, seconds: float = 3.0) -> bool:
    """Print what is in the data and how fast it comes; True when nothing is wrong.

    seconds: time that each of the two memory measurements takes; the other measurements take a share of it.
    """
    console = console or Console()
    tokenizer, train, workers = data.tokenizer, data.rows["train"], config.data.num_workers
    stream = data.batch_stream(0, MOST_BATCHES)
    synthetic_rows = SyntheticRows(len(train), data.context_length, tokenizer.vocab_size)

    def loader(rows: Dataset[Tensor], num_workers: int) -> RowLoader:
        return RowLoader(rows, stream, num_workers, config.data.prefetch_factor)

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar as progress, warnings.catch_warnings():
        # PyTorch's remark on more loader processes than cores; whether they help is what is measured here.
        warnings.filterwarnings("ignore", message=".*worker processes in total")
        task = progress.add_task("starting", total=len(data.rows) + 2 + len(WORKERS_TRIED))

        def stage(description: str) -> None:
            progress.update(task, description=description, advance=1)
            if not console.is_terminal:
                console.print(f"{description} ...")

        scans = {}
        for name, rows in data.rows.items():
            stage(f"reading the rows of {name}")
            scans[name] = scan_rows(rows, tokenizer, seconds)
        stage("watching speed and memory")
        real = watch(loader(train, workers), seconds)
        stage("watching speed and memory with synthetic rows")
        synthetic = watch(loader(synthetic_rows, workers), seconds)
        by_workers = {}
        for number in WORKERS_TRIED:
            stage(f"trying --num_workers {number}")
            by_workers[number] = watch(loader(train, number), seconds / 2, looks=0)
    batch = next(iter(data.train_dataloader()))["input_ids"]
    tokens = batch.shape[0] * data.context_length

    console.print(splits_table(data, scans))
    line = f"batch {list(batch.shape)} {batch.dtype}; first after {real.first_seconds:.3f} s; then "
    line += f"{real.rate:,.0f} batches/s, {real.rate * tokens:,.0f} tokens/s with --num_workers {workers}"
    console.print(line, highlight=False, soft_wrap=True)
    print_examples(console, data)
    console.print(workers_table(by_workers, tokens))

    findings = [
        judge_batch(batch, data),
        judge_range(scans, tokenizer.vocab_size),
        judge_padding(scans),
        *judge_duplicates(scans, data),
        judge_rate(real, synthetic),
        judge_memory(real, synthetic),
        judge_workers(by_workers, workers),
    ]
    for finding in findings:
        verdict = Text(f"{finding.verdict:8}", style=STYLES[finding.verdict])
        console.print(verdict, Text(f"{finding.check}: {finding.text}"), soft_wrap=True)
    problems = sum(finding.verdict == "problem" for finding in findings)
    console.print(Text(f"{problems} problem(s) found.", style=STYLES["problem" if problems else "ok"]))
    return problems == 0


def scan_rows(rows: PackedRows, tokenizer: Tokenizer, seconds: float) -> Scan:
    """Go through the rows in order, each once, until the end or for at most so many seconds."""
    hashes, telling, pads, seen, out_of_range = [], [], 0, 0, None
    most = min(len(rows), MOST_SCANNED_TOKENS // rows.context_length)
    weights = np.random.default_rng(0).integers(2**63, size=rows.context_length + 1, dtype=np.uint64) * 2 + 1
    end = time.perf_counter() + seconds
    for batch in RowLoader(rows, evaluation_batches(range(most), SCAN_BATCH)):
        ids = batch["input_ids"].numpy()
        hashes.append((ids.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64))
        telling.append((np.diff(np.sort(ids, axis=1), axis=1) != 0).sum(axis=1) + 1 > PLAIN)
        pads += int((ids[:, 1:] == tokenizer.pad_id).sum())
        wrong = np.argwhere((ids < 0) | (ids >= tokenizer.vocab_size))
        if out_of_range is None and len(wrong):
            out_of_range = seen + int(wrong[0, 0]), int(ids[tuple(wrong[0])])
        seen += len(ids)
        if time.perf_counter() > end:
            break
    return Scan(
        num_rows=seen,
        hashes=np.concatenate(hashes) if hashes else np.empty(0, np.uint64),
        telling=np.concatenate(telling) if telling else np.empty(0, bool),
        pad_share=pads / max(seen * rows.context_length, 1),
        out_of_range=out_of_range,
    )


def judge_batch(batch: Tensor, data: DataModule) -> Finding:
    expected = (data.batch_size, data.context_length + 1)
    if tuple(batch.shape) == expected and batch.dtype == torch.int64:
        return Finding("batch", "ok", f"shape {list(expected)}, torch.int64")
    return Finding(
        "batch", "problem", f"shape {list(batch.shape)}, {batch.dtype} instead of {list(expected)}, torch.int64"
    )


def judge_range(scans: dict[str, Scan], vocab_size: int) -> Finding:
    for name, scan in scans.items():
        if scan.out_of_range:
            row, token = scan.out_of_range
            text = f"row {row} of {name} holds {token}, allowed is 0 to {vocab_size - 1}"
            remedy = "the cache does not belong to this --tokenizer: delete it, or use the one it was made with"
            return Finding("token ids", "problem", f"{text}; {remedy}")
    return Finding("token ids", "ok", f"all from 0 to {vocab_size - 1}")


def judge_padding(scans: dict[str, Scan]) -> Finding:
    name, scan = max(scans.items(), key=lambda item: item[1].pad_share)
    text = f"at most {scan.pad_share:.1%} of the targets ({name})"
    # A split of a few rows has much padding in its last one, which costs nothing.
    if scan.pad_share > 0.1 and scan.num_rows > 10:
        return Finding("padding", "warning", f"{text}: a smaller --context_length wastes less")
    return Finding("padding", "ok", text)


def judge_duplicates(scans: dict[str, Scan], data: DataModule) -> list[Finding]:
    """Full rows that stand twice in a split or in two splits; those that spoil training or its measure are problems."""
    train = data.rows["train"]
    row_bytes = data.context_length * train.num_bytes / max(len(train.tokens), 1)
    short = row_bytes < TELLING_BYTES
    remedy = f"rows of {row_bytes:.0f} bytes repeat by chance" if short else "remove repeated documents"
    hashes = {name: scan.hashes[scan.telling] for name, scan in scans.items()}
    findings = []

    def found(check: str, name: str, place: int, count: int, tolerated: float) -> None:
        share, row = count / len(hashes[name]), int(np.flatnonzero(scans[name].telling)[place])
        verdict = "problem" if share > (CHANCE_SHARE if short else tolerated) else "warning"
        text = f"{count:,} of {len(hashes[name]):,} rows ({share:.2%}), as {decoded(data, name, row)}; {remedy}"
        findings.append(Finding(check, verdict, text))

    for name, own in hashes.items():
        _, first, counts = np.unique(own, return_index=True, return_counts=True)
        if len(counts) < len(own):
            place, repeats = int(first[counts.argmax()]), len(own) - len(counts)
            found(f"rows repeated in {name}", name, place, repeats, 0.01 if name == "train" else 1)
    for one, other in combinations(hashes, 2):
        shared = np.flatnonzero(np.isin(hashes[other], hashes[one]))
        if len(shared):
            found(f"rows of {one} in {other}", other, int(shared[0]), len(shared), 0 if one == "train" else 1)
    return findings or [Finding("duplicates", "ok", "no row stands twice in a split or in two splits")]


def judge_rate(real: Watch, synthetic: Watch) -> Finding:
    share = real.rate / synthetic.rate
    text = f"{real.rate:,.0f} batches/s, {share:.2g} of the {synthetic.rate:,.0f} that come without data"
    if share < 0.05:
        return Finding("speed", "problem", f"{text}: reading rows is slow; keep the cache on a local disk")
    return Finding("speed", "ok", text)


def judge_memory(real: Watch, synthetic: Watch) -> Finding:
    text = f"{real.growth:+.2f} MB per 1,000 batches, {synthetic.growth:+.2f} with synthetic rows"
    if real.grows and synthetic.grows:
        return Finding("memory", "problem", f"growing, {text}: both grow, so the leak is in the code of the loader")
    if real.grows:
        remedy = "it grows here and not with synthetic rows, so the leak is in the data path (PackedRows or its split)"
        return Finding("memory", "problem", f"growing, {text}: {remedy}")
    return Finding("memory", "ok", f"flat, {text}")


def judge_workers(by_workers: dict[int, Watch], current: int) -> Finding:
    best = max(seen.rate for seen in by_workers.values())
    # The fewest that come near the best: a loader process costs memory and a start.
    advised = min(number for number, seen in by_workers.items() if seen.rate >= 0.9 * best)
    text = f"--num_workers {advised} is fastest here"
    if current in by_workers and by_workers[current].rate < best / 2:
        return Finding("workers", "warning", f"{text}, more than twice as fast as {current}")
    return Finding("workers", "ok", text)


def splits_table(data: DataModule, scans: dict[str, Scan]) -> Table:
    table = Table(title="splits")
    for heading in ("split", "rows", "looked at", "tokens", "documents", "bytes", "padding"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, rows in data.rows.items():
        counts = (len(rows), scans[name].num_rows, len(rows.tokens), rows.num_documents, rows.num_bytes)
        table.add_row(name, *(f"{count:,}" for count in counts), f"{scans[name].pad_share:.1%}")
    return table


def workers_table(by_workers: dict[int, Watch], tokens: int) -> Table:
    """tokens: in a batch."""
    table = Table(title="loader processes")
    for heading in ("--num_workers", "first batch", "batches/s", "tokens/s"):
        table.add_column(heading, justify="right")
    for number, seen in by_workers.items():
        table.add_row(str(number), f"{seen.first_seconds:.3f} s", f"{seen.rate:,.0f}", f"{seen.rate * tokens:,.0f}")
    return table


def print_examples(console: Console, data: DataModule) -> None:
    """Show the beginning of the first, a middle and the last training row."""
    last = len(data.rows["train"]) - 1
    for row in sorted({0, last // 2, last}):
        console.print(Text(decoded(data, "train", row, width=console.width)), no_wrap=True, overflow="crop")


def decoded(data: DataModule, name: str, row: int, width: int = 80) -> str:
    """The text of a row in one printable line of at most so many characters."""
    tokenizer = data.tokenizer
    ids = data.rows[name].__getitems__([row])[0].tolist()
    text = tokenizer.decode([token for token in ids if 0 <= token < tokenizer.vocab_size and token != tokenizer.pad_id])
    label = f"row {row} of {name}: "
    return label + repr(text)[: max(width - len(label), 0)]
