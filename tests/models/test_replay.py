"""The replay buffer against a queue, and in a checkpoint."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch import Tensor

from models.replay import ReplayBuffer
from tests.models.small import ROWS, S, V, model_of, train


class Replaying(RuleBasedStateMachine):
    """A buffer of 4 rows against a queue of 4 numbers; row n holds n, and so does its prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer, self.expected, self.number = ReplayBuffer(4, 0.5), deque[int](maxlen=4), 0

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        numbers = torch.arange(self.number, self.number + count)
        self.number += count
        return numbers[:, None].expand(count, 3).clone(), numbers[:, None, None].expand(count, 2, 5).double()

    @rule(count=st.integers(1, 6))
    def add(self, count: int) -> None:
        tokens, predictions = self.rows(count)
        self.buffer.add({"input_ids": tokens}, predictions)
        self.expected.extend(tokens[:, 0].tolist())

    @rule(count=st.integers(1, 12), seed=st.integers(0, 99))
    def append(self, count: int, seed: int) -> None:
        torch.manual_seed(seed)
        tokens, _ = self.rows(count)
        batch, start = self.buffer.append_to({"input_ids": tokens})
        mixed = batch["input_ids"]
        old = min(count // 2, len(self.expected))
        assert torch.equal(mixed[:count], tokens) and len(mixed) == count + old
        assert (start is None) == (old == 0)
        if start is not None:
            assert torch.equal(mixed[count:, 0].double(), start[:, 0, 0]), "a row has its own prediction"
        drawn = set(mixed[count:, 0].tolist())
        assert len(drawn) == old and drawn <= set(self.expected)

    @rule()
    def resume(self) -> None:
        file = io.BytesIO()
        torch.save(self.buffer.state(), file)
        file.seek(0)
        self.buffer = ReplayBuffer(4, 0.5)
        self.buffer.load(torch.load(file, weights_only=True))

    @invariant()
    def holds_the_newest_rows(self) -> None:
        assert self.buffer.filled == len(self.expected)
        if self.buffer.predictions is not None:
            tokens = self.buffer.batch["input_ids"]
            assert len(tokens) == len(self.buffer.predictions) == 4
            assert sorted(tokens[: self.buffer.filled, 0].tolist()) == sorted(self.expected)


TestReplaying = Replaying.TestCase
TestReplaying.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)


def test_the_replay_buffer_is_part_of_the_checkpoint() -> None:
    flags = "--mcmc_replay_buffer"
    first, second = model_of(flags), model_of(flags)
    checkpoint: dict[str, Any] = {}
    train(first)
    first.on_save_checkpoint(checkpoint)
    second.on_load_checkpoint(checkpoint)
    assert torch.equal(train(first, seed=9), train(second, seed=9))
    assert not torch.equal(train(model_of(flags), seed=9), train(second, seed=9))


def test_old_rows_come_to_the_device_of_the_batch() -> None:
    buffer = ReplayBuffer(4, 0.5)
    buffer.add({"input_ids": ROWS}, torch.zeros(2, S, V))
    batch, start = buffer.append_to({"input_ids": ROWS.to("meta")})
    assert batch["input_ids"].is_meta and start is not None  # which is moved with the start of the others


def test_only_fresh_rows_are_stored_and_all_are_judged() -> None:
    """Over several batches: first in, first out; the loss covers the replayed rows too."""
    model = model_of("--recipe s2 --mcmc_replay_buffer_size 3 --batch_size_per_device 2")
    for seed in range(3):
        rows = torch.full((2, S + 1), seed)
        train(model, rows, seed)
        assert model.replay is not None
        assert (
            sorted(model.replay.batch["input_ids"][: model.replay.filled, 0].tolist())
            == [[0, 0], [0, 1, 1], [1, 2, 2]][seed]
        )
    assert model.replay is not None
    batch, start = model.replay.append_to({"input_ids": ROWS})
    assert batch["input_ids"].shape == (3, S + 1) and start is not None and start.shape == (1, S, V)


def test_the_state_is_that_of_older_checkpoints() -> None:
    """A buffer of tokens keeps them under the name they always had; other batches keep their own names."""
    buffer, other = ReplayBuffer(2, 1.0), ReplayBuffer(2, 1.0)
    buffer.add({"input_ids": ROWS}, torch.ones(2, S, V))
    assert list(buffer.state()) == ["tokens", "predictions", "filled", "next"]
    other.load({"tokens": None, "predictions": None, "filled": 0, "next": 0})
    assert not other.batch
    other.add({"image": torch.ones(1, 3), "caption": torch.zeros(1, 4)}, torch.ones(1, 3))
    buffer.load(other.state())
    assert set(buffer.batch) == {"image", "caption"} and buffer.next == 1
