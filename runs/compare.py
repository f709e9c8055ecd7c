"""Which numbers of two runs may be compared: of the same task, data, tokenizer and validated units, at the same step.

A verdict needs all of them; where one differs, the reason is given in words and the numbers are left as they are.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from config.settings import all_flags
from core.files import rows_of
from core.text import format_value, join_words
from runs.metrics import EVALUATED, SPLITS, TaskRecord, measure_of, number_or

# A loss per token depends on the tokenizer; the same in bits per byte does not.
BITS = "valid_bits_per_byte"
PER_TOKEN = ("loss", "perplexity")
# The data that a loss is of, its unit, and the flags that leave out a part of the data.
DATA = ("dataset_name", "dataset_dir", "text_field", "max_documents", "validation_split_pct", "test_split_pct")
TOKENIZER = ("tokenizer",)
LIMITS = ("limit_val_batches", "overfit_batches", "fast_dev_run", "debug_mode")
Lookup = Callable[[str], Any]


class Validation(NamedTuple):
    """One row of a validation. value: the headline. units, bytes: how much it saw, see `extent`; 0 where the row does
    not say."""

    step: int
    value: float
    units: float = 0.0
    bits: float = math.nan
    bytes: float = 0.0


def extent(targets: float, context_length: Any, loss: float = 0.0, bits: float = 0.0) -> float:
    """How many units an evaluation saw, or bytes where its loss and bits per byte are given, as a number that is the
    same for the same data only: a sample is of whole rows, and rows of another length are another sample."""
    if not targets or not math.isfinite(targets):
        return 0.0
    size = targets
    if loss or bits:  # nats per token and bits per byte give together how many bytes the tokens are
        size = targets * loss / (bits * math.log(2)) if bits else 0.0
        size = float(f"{size:.3g}") if math.isfinite(size) else 0.0
    length = context_length if isinstance(context_length, int) else 0
    return size + length / 1e9 if size and length and targets % length == 0 else size


def value_of(settings: dict[str, Any], name: str) -> Any:
    """A setting; one that a version did not have is as by default."""
    if name in settings or name not in all_flags():
        return settings.get(name)
    default = all_flags()[name].default
    return list(default) if isinstance(default, tuple) else default


def measured_on(settings: dict[str, Any], name: str) -> Any:
    """A setting of what was measured. Whether a sample came before the whole split, the rows tell themselves."""
    value = value_of(settings, name)
    return "all" if name == "limit_val_batches" and value in (None, 1) else value


def rehearsal_of(setting: Lookup) -> str | None:
    """The flags by which a run is a rehearsal or saw a part of the validation split: its numbers are not ranked."""
    flags = [f"--{name}" for name in ("fast_dev_run", "debug_mode") if setting(name)]
    overfit, limit = setting("overfit_batches"), setting("limit_val_batches")
    if overfit:
        flags.append(f"--overfit_batches {format_value(overfit)}")
    if limit not in (None, 0, 1) and not flags:
        flags.append(f"--limit_val_batches {format_value(limit)}")
    return " ".join(flags) or None


def obstacle(a: dict[str, Any], b: dict[str, Any], metric: str) -> str | None:
    """Why a metric of these two runs says nothing about which is better, in words; None where nothing prevents it."""
    if not a or not b:
        return "the settings of one are not known"
    for names, why in ((DATA, "other data"), (LIMITS, "other limits of validation"), (TOKENIZER, "another tokenizer")):
        differ = [name for name in names if measured_on(a, name) != measured_on(b, name)]
        if differ and not (names is TOKENIZER and metric == BITS):
            flags = [
                f"--{name} {format_value(measured_on(a, name))} and {format_value(measured_on(b, name))}"
                for name in differ
            ]
            return f"{why} ({join_words(flags, 'and')})"
    return None


def kind_of(setting: Lookup, metric: str, size: float) -> Hashable:
    """Runs of one kind can be ranked by the metric. size: the extent of what was evaluated."""
    split = metric.partition("_")[0]
    if split not in ("train", "valid", "test"):
        return None
    bits = metric.endswith("bits_per_byte")
    names = DATA if bits else (*DATA, *TOKENIZER)
    return (*(format_value(setting(name)) for name in names), 0 if split == "train" else size)


def needs_of(column: str, task: TaskRecord) -> list[str]:
    """What must be the same in runs whose values of a column are compared: data, limits, overfitting, tokenizer."""
    split = column.partition("_")[0]
    if split in EVALUATED:
        return ["data", "limits"] if column.endswith("_bits_per_byte") else ["data", "limits", "tokenizer"]
    is_result = split == "train" or (task.sign(column) != 0 and measure_of(column, task.measures) is not None)
    return ["data", "overfitting", "tokenizer"] if is_result else []


def instead_of(column: str) -> str | None:
    """The column that measures the same as this one for any tokenizer."""
    split, _, name = column.partition("_")
    return f"{split}_bits_per_byte" if split in SPLITS and name in PER_TOKEN else None


def validations_of(path: Path, context_length: Any, headline: str) -> list[Validation]:
    """The validations of a run's folder, in the order in which they were written."""
    quoted = json.dumps(headline).encode()
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            lines = [line for line in file if quoted in line]  # one row of many is a validation
    except OSError:
        return []
    validations = []
    for row in rows_of(b"".join(lines)):
        step, value, targets, bits = (row.get(name) for name in ("step", headline, "valid_targets", BITS))
        if isinstance(step, int) and isinstance(value, int | float) and math.isfinite(value):
            seen, coded = (number_or(number, 0.0) for number in (targets, bits))
            sizes = extent(seen, context_length), extent(seen, context_length, value, coded)
            validations.append(Validation(step, value, sizes[0], coded, sizes[1]))
    return validations


def alike(validations: Sequence[Validation]) -> list[Validation]:
    """The validations after step 0 over one number of units: of that which most of them saw."""
    trained = [one for one in validations if one.step > 0]
    counts = Counter(one.units for one in trained)
    most = max(counts, key=lambda units: (counts[units], units), default=0)
    return list({one.step: one for one in trained if one.units == most}.values())


def meeting(
    mine: Sequence[Validation], theirs: Sequence[Validation], size: Callable[[Validation], float]
) -> tuple[Validation, Validation] | None:
    """The last step at which both were validated over as much data; at one step the larger validation counts."""
    a, b = ({(one.step, size(one)): one for one in rows if one.step > 0} for rows in (mine, theirs))
    both = a.keys() & b.keys()
    return (a[max(both)], b[max(both)]) if both else None
