"""A map over threads that keeps the order and holds few items at a time.

Threads are enough: what is mapped runs without the interpreter's lock, in another process or in compiled code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from core.cpus import own_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Yield function(item) in order. At most one item per thread waits, so the input may be larger than memory."""
    threads = threads or own_cpus()
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(pool.submit(function, item))
                if len(running) >= 2 * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
