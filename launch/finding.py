"""A line of the doctor's checklist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """ok, look (at this) or fails, what was found, and what to do where it is not ok."""

    what: str
    verdict: str
    found: str
    advice: str = ""


def judged(what: str, good: bool, yes: str, no: str, advice: str) -> Finding:
    return Finding(what, "ok", yes) if good else Finding(what, "fails", no, advice)
