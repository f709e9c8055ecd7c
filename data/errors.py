"""The one error of this room: something about the data that the person can put right."""

from __future__ import annotations

from core.errors import UserError


class DataError(UserError):
    """A dataset, tokenizer or cache that cannot be used; the message is one sentence with the remedy."""
