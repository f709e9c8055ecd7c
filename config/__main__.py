"""`python -m config` lists every flag: group, flag, type, default and what it affects. The tests keep this list."""

from __future__ import annotations

from config.settings import SIZE_TABLE_FLAGS
from config.task_flags import all_flags


def flag_list() -> str:
    """The list, group by group."""
    return "".join(
        f"{flag.group} {flag.name} {flag.annotation} {default} {flag.affects}\n"
        for flag in all_flags().values()
        for default in ("by size" if flag.name in SIZE_TABLE_FLAGS else repr(flag.default),)
    )


if __name__ == "__main__":
    print(flag_list(), end="")
