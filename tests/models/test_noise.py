"""Noise out of torch's generator, drawn by all cores."""

from __future__ import annotations

import pytest
import torch

from models.noise import PIECE, parallel_normal

WEIGHT = torch.empty(())


def test_a_little_noise_is_torchs_own() -> None:
    torch.manual_seed(3)
    noise = parallel_normal((4, 5), WEIGHT)
    torch.manual_seed(3)
    assert torch.equal(noise, torch.randn(4, 5))


def test_much_noise_does_not_depend_on_the_number_of_threads() -> None:
    drawn = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            drawn.append((parallel_normal((3, PIECE), WEIGHT), torch.rand(1)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(noise, drawn[0][0]) and after == drawn[0][1] for noise, after in drawn)
    again = parallel_normal((3, PIECE), WEIGHT)
    assert not torch.equal(again, drawn[0][0])


def test_much_noise_is_standard_normal_and_no_two_pieces_are_alike() -> None:
    torch.manual_seed(3)
    noise = parallel_normal((4, PIECE), WEIGHT.double())
    assert noise.dtype == torch.float64
    assert float(noise.mean()) == pytest.approx(0, abs=0.004)
    assert float(noise.std()) == pytest.approx(1, abs=0.004)
    assert float(torch.corrcoef(noise).tril(-1).abs().max()) < 0.01
    assert float((noise.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=0.0004)
