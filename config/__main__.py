"""`python -m config` lists every flag, a line each: group, flag, type, default. The tests keep this list."""

from __future__ import annotations

from .flags import FLAGS, SIZED


def flag_list() -> str:
    """The list, ordered as in settings.py."""
    return "".join(
        f"{flag.group} {flag.name} {flag.annotation} {'by size' if flag.name in SIZED else repr(flag.default)}\n"
        for flag in FLAGS.values()
    )


if __name__ == "__main__":
    print(flag_list(), end="")
