"""A map over processes that keeps the order, holds few items at a time and leaves no process behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

from data.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, small: int = 4, processes: int | None = None
) -> Iterator[Result]:
    """Yield function(item) in order from one process per core; fewer than `small` items stay in this process.

    At most three items per process are read ahead, so that the input may be larger than memory.
    """
    processes = processes or usable_cores()
    source = iter(items)
    head = list(islice(source, small))
    if len(head) < small or processes == 1:
        yield from map(function, chain(head, source))
        return
    # spawn, since a forked copy of a process with threads (torch, tokenizers) can hang
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _prepare_worker, (function,))
    try:
        waiting: deque[Future[Result]] = deque()
        for item in chain(head, source):
            waiting.append(pool.submit(_apply, item))
            if len(waiting) >= 3 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "A process that prepares the data died, most likely for lack of memory: free some memory and start again."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def usable_cores() -> int:
    """Cores this process may run on; a Slurm job often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_function: Callable[[Any], Any] | None = None  # of a worker; sent once, since a tokenizer takes long to unpack


def _apply(item: Any) -> Any:
    assert _function is not None
    return _function(item)


def _prepare_worker(function: Callable[[Any], Any]) -> None:
    """Leave Ctrl-C to the parent, and end when the parent is gone, which the pool's own queues do not notice."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
