"""The Hugging Face hub: whether it can be reached, asked before its libraries are used, and why a download failed."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Literal, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_SECONDS = 5.0
GATED = re.compile(r"is a gated|access a gated")  # of errors that no longer say what they came from
COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_address() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_is_reachable() -> bool:
    """Whether anything answers at the hub's address; false at once when HF_HUB_OFFLINE is set."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:
        with urlopen(Request(hub_address(), method="HEAD"), timeout=TIMEOUT_SECONDS):
            return True
    except HTTPError:
        return True  # it answered, be it with a login page
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


class Refusal(NamedTuple):
    """Why a library could not load something. reason: a clause with the library's own first line; remedy: another."""

    kind: Literal["gated", "missing", "config", "package", "other"]
    reason: str
    remedy: str


def refusal(error: BaseException, repository: str, kind: Literal["dataset", "model"]) -> Refusal:
    """What an exception of `datasets`, `transformers` or `huggingface_hub` means, of a hub that can be reached."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    line, causes = first_line(error), list(causes_of(error))
    page = f"{hub_address()}/{'datasets/' if kind == 'dataset' else ''}{repository}"
    if any(isinstance(cause, GatedRepoError) or GATED.search(str(cause)) for cause in causes):
        remedy = f"accept the terms on {page}, then set HF_TOKEN to a token of your account"
        return Refusal("gated", f"{repository} is gated ({line})", remedy)
    if isinstance(error, ImportError):
        named = re.search(r"pip install (?:-\S+ )*([\w.-]+)", str(error)) or re.search(r"`(\w+)`", str(error))
        package = named[1] if named else error.name
        remedy = f"install it with pip install {package}" if package else "install it"
        return Refusal("package", f"{repository} needs a package that is not here ({line})", remedy)
    if isinstance(error, ValueError) and str(error).startswith("BuilderConfig"):
        return Refusal("config", f"{repository} has no such part ({line.partition('. Available')[0]})", "")
    not_found = (RepositoryNotFoundError, RevisionNotFoundError)
    if any(isinstance(cause, not_found) or "doesn't exist on the Hub" in str(cause) for cause in causes):
        return Refusal("missing", f"the hub has no {repository} ({line})", "")
    return Refusal("other", f"the hub's {repository} cannot be loaded ({line})", "")


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """An exception in a few words, to put into a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
