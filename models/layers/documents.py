"""Who may look at whom in a row that holds several documents."""

from __future__ import annotations

import torch
from torch import Tensor


def document_mask(tokens_BS: Tensor, separator_id: int) -> Tensor:
    """True where a position may look: not ahead, and not into another document. [B, S] -> [B, 1, S, S]

    A document begins at its separator, so the count of separators so far names the document.
    """
    document_BS = (tokens_BS == separator_id).cumsum(-1)
    same_BSS = document_BS[:, :, None] == document_BS[:, None, :]
    return torch.tril(same_BSS).unsqueeze(1)
