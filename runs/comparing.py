"""Which numbers of two runs may be compared: of the same data, tokenizer and validated tokens, at the same step.

A verdict needs all of them; where one differs the reason is told in words, and the numbers stay what they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from config.flags import FLAGS
from core.files import rows_of
from core.text import listing, shown

LOSS, BITS = "valid_loss", "valid_bits_per_byte"
# The text that a loss is of, its unit, and the flags that leave out a part of it.
DATA = ("dataset_name", "dataset_dir", "text_field", "max_documents", "validation_split_pct", "test_split_pct")
TOKENIZER = ("tokenizer",)
LIMITS = ("limit_val_batches", "overfit_batches", "fast_dev_run", "debug_mode")
Lookup = Callable[[str], Any]


class Validation(NamedTuple):
    """One row of a validation. tokens, bytes: how much it saw, see `extent`; 0 where the row does not say."""

    step: int
    loss: float
    tokens: float = 0.0
    bits: float = math.nan
    bytes: float = 0.0


def extent(targets: float, context_length: Any, loss: float = 0.0, bits: float = 0.0) -> float:
    """How many tokens an evaluation saw, or bytes where its loss and bits per byte are given, as a number that is the
    same for the same text only: a sample is of whole rows, and rows of another length are another sample."""
    if not targets or not math.isfinite(targets):
        return 0.0
    found = targets
    if loss or bits:  # nats per token and bits per byte tell together how many bytes the tokens are
        found = targets * loss / (bits * math.log(2)) if bits else 0.0
        found = float(f"{found:.3g}") if math.isfinite(found) else 0.0
    length = context_length if isinstance(context_length, int) else 0
    return found + length / 1e9 if found and length and targets % length == 0 else found


def value_of(settings: dict[str, Any], name: str) -> Any:
    """A setting; one that a version did not have is as by default."""
    if name in settings or name not in FLAGS:
        return settings.get(name)
    default = FLAGS[name].default
    return list(default) if isinstance(default, tuple) else default


def measured_on(settings: dict[str, Any], name: str) -> Any:
    """A setting of what was measured. Whether a sample came before the whole split, the rows tell themselves."""
    value = value_of(settings, name)
    return "all" if name == "limit_val_batches" and value in (None, 1) else value


def rehearsal_of(setting: Lookup) -> str | None:
    """The flags by which a run is a rehearsal or saw a part of the validation split: its numbers are not ranked."""
    found = [f"--{name}" for name in ("fast_dev_run", "debug_mode") if setting(name)]
    overfit, limit = setting("overfit_batches"), setting("limit_val_batches")
    if overfit:
        found.append(f"--overfit_batches {shown(overfit)}")
    if limit not in (None, 0, 1) and not found:
        found.append(f"--limit_val_batches {shown(limit)}")
    return " ".join(found) or None


def obstacle(a: dict[str, Any], b: dict[str, Any], metric: str = LOSS) -> str | None:
    """Why a metric of these two runs says nothing about which is better, in words; None where nothing is in the way."""
    if not a or not b:
        return "the settings of one are not known"
    for names, why in ((DATA, "other data"), (LIMITS, "other limits of validation"), (TOKENIZER, "another tokenizer")):
        differ = [name for name in names if measured_on(a, name) != measured_on(b, name)]
        if differ and not (names is TOKENIZER and metric.endswith("bits_per_byte")):
            flags = [f"--{name} {shown(measured_on(a, name))} and {shown(measured_on(b, name))}" for name in differ]
            return f"{why} ({listing(flags, 'and')})"
    return None


def kind_of(setting: Lookup, metric: str, size: float) -> Hashable:
    """Runs of one kind can be ranked by the metric. size: the extent of what was evaluated."""
    split = metric.partition("_")[0]
    if split not in ("train", "valid", "test"):
        return None
    bits = metric.endswith("bits_per_byte")
    names = DATA if bits else (*DATA, *TOKENIZER)
    return (*(shown(setting(name)) for name in names), 0 if split == "train" else size)


def validations_of(path: Path, context_length: Any) -> list[Validation]:
    """The validations of a run's folder, in the order in which they were written."""
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            lines = [line for line in file if b'"valid_loss"' in line]  # one row of many is a validation
    except OSError:
        return []
    found = []
    for row in rows_of(b"".join(lines)):
        step, loss, targets, bits = (row.get(name) for name in ("step", LOSS, "valid_targets", BITS))
        if isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss):
            seen, coded = (value if isinstance(value, int | float) else 0.0 for value in (targets, bits))
            sizes = extent(seen, context_length), extent(seen, context_length, loss, coded)
            found.append(Validation(step, loss, sizes[0], coded, sizes[1]))
    return found


def alike(validations: Sequence[Validation]) -> list[Validation]:
    """The validations after step 0 over one number of tokens: of that which most of them saw."""
    trained = [one for one in validations if one.step > 0]
    counts = Counter(one.tokens for one in trained)
    most = max(counts, key=lambda tokens: (counts[tokens], tokens), default=0)
    return list({one.step: one for one in trained if one.tokens == most}.values())


def meeting(
    mine: Sequence[Validation], theirs: Sequence[Validation], size: Callable[[Validation], float]
) -> tuple[Validation, Validation] | None:
    """The last step at which both were validated over as much text; at one step the larger validation counts."""
    a, b = ({(one.step, size(one)): one for one in rows if one.step > 0} for rows in (mine, theirs))
    both = a.keys() & b.keys()
    return (a[max(both)], b[max(both)]) if both else None
