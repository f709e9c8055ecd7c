"""Is the Hugging Face hub there? Asked before its libraries are, which would try for minutes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_SECONDS = 5.0


def hub_is_reachable() -> bool:
    """Whether anything answers at the hub's address; false at once when HF_HUB_OFFLINE is set."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    request = Request(os.environ.get("HF_ENDPOINT") or "https://huggingface.co", method="HEAD")
    try:
        with urlopen(request, timeout=TIMEOUT_SECONDS):
            return True
    except HTTPError:
        return True  # it answered, and a login or another page is not for us to judge
    except URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # the libraries bring certificates of their own
    except (OSError, HTTPException, ValueError):
        return False


@contextmanager
def offline_libraries() -> Iterator[None]:
    """Let `datasets` look only at what was downloaded before; it reads its environment once, at import."""
    import datasets.config
    import huggingface_hub.constants

    modules: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def first_line(error: BaseException) -> str:
    """An exception in a few words, to put into a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
