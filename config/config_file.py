"""Reads a --config file, YAML or JSON, into plain values, and brings records of earlier versions up to date.

Repeated keys are reported, and nothing in a file is ever executed.

A record (config.json, a checkpoint, a file that `--print_config` made) has a version. What a flag of an earlier version
meant is expressed here by flags that mean the same now; where no flag does, a sentence says so.

1: before truncation, random steps and replay were as public EBT code has them. A record without a version.
2: now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.text import format_value

VERSION = 2
# Flags that every record of version 1 has; a --config file that a person wrote has not all of them.
VERSION_1_FLAGS = (
    "mcmc_num_steps",
    "truncate_mcmc",
    "mcmc_replay_buffer_size",
    "randomize_mcmc_num_steps_min",
    "ebt_norm",
)

Changes = dict[str, str]  # {flag: what it meant then and means now}

DEEPEST = 3  # group, flag, item of a list; the bound also keeps aliases within aliases from growing


def read_file(path: str, problems: list[str]) -> dict[str, Any] | None:
    """The file's mapping, or None when it cannot be used; what is wrong with it is added to `problems`."""
    repeated: list[str] = []
    try:
        text = read_text(path)
        tree = load_json(text, repeated) if path.endswith(".json") else load_yaml(text, repeated)
        if not tree or not isinstance(tree, dict):
            raise ValueError("it holds no settings; write them as `flag: value`, or remove --config")
    except RecursionError:
        problems.append(f"--config is {path!r}: it is nested too deeply; write `flag: value` lines.")
        return None
    except ValueError as problem:
        problems.append(f"--config is {path!r}: {problem}.")
        return None
    problems += [f"{key} in {format_value(path)} is given twice: keep one." for key in repeated]
    return tree


def read_text(path: str) -> str:
    """The text of the file; a ValueError says why there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError("there is no such file; give the path of a YAML or JSON file") from None
    except IsADirectoryError:
        raise ValueError("it is a folder; give the path of a YAML or JSON file") from None
    except UnicodeError:
        raise ValueError("it is not a UTF-8 text; give a YAML or JSON file") from None
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror}); check the path and its permissions") from None
    if not text.strip():
        raise ValueError("it is empty; write settings into it as `flag: value`, or remove --config")
    return text


def load_json(text: str, repeated: list[str]) -> Any:
    """The plain values of a JSON text; names of repeated keys are added to `repeated`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated.extend(format_value(key) for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not valid JSON ({position}: {error.msg}); correct it") from None


def load_yaml(text: str, repeated: list[str], deepest: int = DEEPEST) -> Any:
    """The plain values of a YAML text; every scalar but null, true and false stays the text that was written.

    So `run_name: 007` keeps its zeros and `peak_learning_rate: 1e-3`, a text to YAML 1.1, is still a number to us.
    deepest: RecursionError where it is nested deeper.
    """
    import yaml  # here, so that --help does not wait for it

    def plain(node: yaml.Node, depth: int) -> Any:
        if depth > deepest:
            raise RecursionError
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            tree: dict[str, Any] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise ValueError(f"it has a key that is not a text (line {line}); write `flag: value`")
                if key.value in tree:
                    repeated.append(f"{format_value(key.value)} (line {line})")
                tree[key.value] = plain(value, depth + 1)
            return tree
        if node.tag.endswith(":null"):
            return None
        if node.tag.endswith(":bool") and node.value.lower() in ("true", "false"):
            return node.value.lower() == "true"
        return node.value

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"it is not valid YAML ({position}{' '.join(what.split())}); correct it") from None
    return {} if root is None else plain(root, 0)


def upgrade(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Changes]:
    """The record as this version writes it, and the flags whose meaning in training no flag has any more.

    Evaluation and inference give the same numbers with the tree as it is returned, also where training would not.
    """
    tree = dict(tree)
    version = tree.pop("version", None)
    energy = tree.get("energy")
    if version is not None or not isinstance(energy, Mapping) or not all(name in energy for name in VERSION_1_FLAGS):
        return tree, {}
    energy, changes = dict(energy), Changes()
    tree["energy"] = energy
    run = tree.get("run")
    is_ebt = isinstance(run, Mapping) and run.get("model_name") == "ebt"
    energy["energy_form"] = "scalar"
    energy["mcmc_last_step_loss"] = bool(energy["truncate_mcmc"])
    energy["truncate_mcmc"] = False
    if _number(energy.get("randomize_mcmc_num_steps")) > 0:
        changes["randomize_mcmc_num_steps"] = (
            "the number of all steps was drawn, and evaluation took none of them; now each landscape is repeated"
        )
    energy |= {"randomize_mcmc_num_steps": 0, "randomize_mcmc_num_steps_min": 0}
    energy["randomize_mcmc_num_steps_final_landscape"] = False
    if _number(energy.get("randomize_mcmc_step_size_scale")) > 1:
        changes["randomize_mcmc_step_size_scale"] = "a size was drawn for each step; now it is drawn once for a walk"
    if energy.get("mcmc_replay_buffer"):
        changes["mcmc_replay_buffer"] = "old rows replaced those of a batch; now they are appended"
    if energy.get("contrastive_loss"):
        changes["contrastive_loss"] = (
            "it compared with the end of the walk; now with the prediction before the last step"
        )
    return tree, changes if is_ebt else {}


def later_version(tree: Mapping[str, Any], origin: str) -> list[str]:
    """The problem of a record that a later version wrote."""
    if _number(tree.get("version")) <= VERSION:
        return []
    return [
        f"{origin} was written by a later version of these settings ({tree['version']}; this is {VERSION}): update."
    ]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
