"""The cache is never half there: damage, full disks, killed processes and two builders at once."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config.settings import Text
from core.errors import UserError
from data.language.cache import TokenCache, cache_root, checksum
from data.language.sources import SPLITS
from data.language.store import open_store
from tests.data.small import documents_of, run

pytestmark = pytest.mark.usefixtures("cache")


def test_warm_start_reads_no_text(settings: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(settings)
    monkeypatch.setattr(
        "data.language.sources.local_files.JsonLines.documents", lambda *_: pytest.fail("read the text")
    )
    assert open_store(settings).fingerprint == first.fingerprint


def test_warm_start_of_pydocs_is_quick_and_light(cache: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "a.py").write_text('"""Text."""')
    code = (
        "import time, sysconfig\n"
        "sysconfig.get_paths = lambda: {'stdlib': sys.argv[1]}\n"
        "start = time.perf_counter(); open_store(Text()); print(time.perf_counter() - start)\n"
        "print({'torch', 'datasets', 'transformers', 'tokenizers', 'rich'} & set(sys.modules))\n"
    )
    for _ in range(2):
        output, errors = run(code, str(library)).communicate()
        assert not errors
    seconds, imported = output.splitlines()
    assert float(seconds) < 0.5 and imported == "set()"


def test_changed_text_is_read_again_and_the_same_text_is_the_same_content(settings: Text) -> None:
    first = open_store(settings)
    os.utime(str(settings.dataset_dir), (1, 1))
    assert open_store(settings).path == first.path
    file = Path(str(settings.dataset_dir))
    file.write_text(file.read_text().replace("energy", "matter"))
    second = open_store(settings)
    assert second.fingerprint != first.fingerprint
    assert all(text.endswith("matter") for text in documents_of(second, "train"))


def truncate(path: Path) -> None:
    os.truncate(path / "train.bin", 100)


def odd_size(path: Path) -> None:
    os.truncate(path / "train.bin", 101)


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "valid.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "valid.bin").write_bytes(data)


def empty_file(path: Path) -> None:
    os.truncate(path / "test.bin", 0)


def lose_a_file(path: Path) -> None:
    (path / "test.bin").unlink()


def lose_meta(path: Path) -> None:
    (path / "meta.json").unlink()


def spoil_meta(path: Path) -> None:
    (path / "meta.json").write_text('{"splits": {"train": 3}, "dtype"')


def hollow_meta(path: Path) -> None:
    (path / "meta.json").write_text("[]")


def meta_without_splits(path: Path) -> None:
    (path / "meta.json").write_text('{"splits": {}, "dtype": "uint16", "tokenizer": "bytes"}')


@pytest.mark.parametrize(
    "damage",
    [truncate, odd_size, flip_a_bit, empty_file, lose_a_file, lose_meta, spoil_meta, hollow_meta, meta_without_splits],
)
def test_damage_is_told_and_repaired(settings: Text, damage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = open_store(settings)
    assert first.path is not None
    expected = {split: first.splits[split].tokens.tolist() for split in SPLITS}
    damage(first.path)
    capsys.readouterr()
    second = open_store(settings)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"The token cache {first.path} is damaged (")
    assert lines[0].endswith("): building it again.")
    assert {split: second.splits[split].tokens.tolist() for split in SPLITS} == expected
    assert open_store(settings).path == second.path and not capsys.readouterr().err


@pytest.mark.parametrize(
    ("index", "is_noticed"), [(0, True), (7, True), (8, False), (91, False), (92, True), (-1, True)]
)
def test_large_files_are_verified_at_their_ends(index: int, is_noticed: bool) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    damaged = tokens.copy()
    damaged[index] ^= 1
    assert checksum(damaged) != checksum(tokens), "a small file is verified as a whole"
    large = partial(checksum, whole_bytes=64, end_bytes=16)
    assert (large(damaged) != large(tokens)) == is_noticed


def test_others_may_read_what_is_finished(settings: Text, cache: Path) -> None:
    path = open_store(replace(settings, tokenizer="bpe:260")).path
    assert path is not None
    for file in [path, *path.iterdir(), *(cache / "requests").iterdir(), *(cache / "tokenizers").iterdir()]:
        assert file.stat().st_mode & 0o044 == 0o044, file


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBT_CACHE", "/somewhere")
    assert cache_root() == Path("/somewhere")
    monkeypatch.delenv("EBT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/ebt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "ebt"


# ---- several processes


def test_two_processes_at_once_build_once(settings: Text, cache: Path) -> None:
    code = (
        "import json, time\n"
        "from data.language.sources.local_files import JsonLines\n"
        "read = JsonLines.documents\n"
        "def slow(self, split):\n"
        "    print('building', flush=True); time.sleep(1); return read(self, split)\n"
        "JsonLines.documents = slow\n"
        "store = open_store(Text(dataset_name='jsonl', dataset_dir=sys.argv[1]))\n"
        "print(store.fingerprint, len(store.splits['train'].tokens))\n"
    )
    results = [process.communicate() for process in [run(code, str(settings.dataset_dir)) for _ in range(2)]]
    assert sorted(output.count("building") for output, _ in results) == [0, 1]
    assert len({output.splitlines()[-1] for output, _ in results}) == 1
    errors = "".join(error for _, error in results)
    assert errors == "Another process is preparing the same tokens: waiting for it.\n"
    assert not list((cache / "building").iterdir())


def test_without_locks_the_first_rename_wins(settings: Text, cache: Path) -> None:
    code = (
        "import fcntl\n"
        "def unsupported(*_): raise OSError(95, 'Operation not supported')\n"
        "fcntl.flock = unsupported\n"
        "store = open_store(Text(dataset_name='jsonl', dataset_dir=sys.argv[1]))\n"
        "print(store.fingerprint, len(store.splits['train'].tokens))\n"
    )
    results = [process.communicate() for process in [run(code, str(settings.dataset_dir)) for _ in range(4)]]
    assert not any(error for _, error in results)
    assert len({output for output, _ in results}) == 1
    assert len(list((cache / "tokens").iterdir())) == 1 and not list((cache / "building").iterdir())


def test_killed_builder_leaves_no_lock_and_no_rubbish(settings: Text, cache: Path) -> None:
    code = (
        "import time\n"
        "from data.language.cache import CacheWriter\n"
        "def hang(self, split, tokens):\n"
        "    self.files[split].write(tokens); self.files[split].flush()\n"
        "    print('writing', flush=True); time.sleep(600)\n"
        "CacheWriter.write = hang\n"
        "open_store(Text(dataset_name='jsonl', dataset_dir=sys.argv[1]))\n"
    )
    process = run(code, str(settings.dataset_dir))
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left_behind,) = (cache / "building").iterdir()
    of_another_machine = left_behind.with_name(left_behind.name.replace(os.uname().nodename, "elsewhere"))
    of_another_machine.mkdir()
    start = time.monotonic()
    store = open_store(settings)
    assert time.monotonic() - start < 30
    assert sum(split.num_documents for split in store.splits.values()) == 400
    assert list((cache / "building").iterdir()) == [of_another_machine]


def test_the_loser_of_the_rename_throws_its_copy_away(cache: Path) -> None:
    tokens = np.arange(10, dtype=np.uint16)
    counts = dict.fromkeys(SPLITS, (1, 9))
    tokens_cache = TokenCache(cache)
    with tokens_cache.building("one") as first, tokens_cache.building("two") as second:
        for building in (first, second):
            building.write("train", tokens)
            building.commit("content", "bytes", tokens.dtype, counts, {})
    entry = tokens_cache.read("content")
    assert entry is not None and entry.splits["train"].tokens.tolist() == tokens.tolist()
    assert tokens_cache.content_of("one") == tokens_cache.content_of("two") == "content"
    assert not list((cache / "building").iterdir())


# ---- what a person can get wrong


def test_cache_that_cannot_be_written(settings: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "cache"
    monkeypatch.setenv("EBT_CACHE", str(root))
    for tokenizer in ("bytes", "bpe:260"):
        with pytest.raises(UserError) as error:
            open_store(replace(settings, tokenizer=tokenizer))
        assert str(error.value) == (
            f"The token cache {root} cannot be written (Not a directory): free some space, set EBT_CACHE to another "
            "folder, or give --no-pretokenize_dataset to keep the tokens in memory."
        )
    assert open_store(replace(settings, pretokenize_dataset=False)).splits["train"].num_documents > 300


@pytest.mark.parametrize("limit", [1, 4096, 10_000])
def test_full_disk(settings: Text, cache: Path, limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(UserError, match=r"^The token cache .* cannot be written \(File too large\): free "):
            open_store(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((cache / "building").iterdir()) and not (cache / "tokens").exists()
    assert open_store(settings).splits["train"].num_documents > 300


def test_read_only_cache_still_serves_what_it_has(settings: Text, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(settings)
    shutil.rmtree(cache / "locks")
    (cache / "locks").write_text("no folder can be made here")
    assert open_store(settings).fingerprint == first.fingerprint
