"""Reads a --config file, YAML or JSON, into plain values; repeated keys are found, nothing in it is ever run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.text import shown

DEEPEST = 3  # group, flag, item of a list; the bound also keeps aliases within aliases from growing


def read_file(path: str, problems: list[str]) -> dict[str, Any] | None:
    """The file's mapping, or None when it cannot be used; what is wrong with it is added to `problems`."""
    repeated: list[str] = []
    try:
        text = text_of(path)
        tree = json_tree(text, repeated) if path.endswith(".json") else yaml_tree(text, repeated)
        if not tree or not isinstance(tree, dict):
            raise ValueError("it holds no settings; write them as `flag: value`, or remove --config")
    except RecursionError:
        problems.append(f"--config is {path!r}: it is nested too deeply; write `flag: value` lines.")
        return None
    except ValueError as problem:
        problems.append(f"--config is {path!r}: {problem}.")
        return None
    problems += [f"{key} in {shown(path)} is given twice: keep one." for key in repeated]
    return tree


def text_of(path: str) -> str:
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


def json_tree(text: str, repeated: list[str]) -> Any:
    """The plain values of a JSON text; names of repeated keys are added to `repeated`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated.extend(shown(key) for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not valid JSON ({place}: {error.msg}); correct it") from None


def yaml_tree(text: str, repeated: list[str]) -> Any:
    """The plain values of a YAML text; every scalar but null, true and false stays the text that was written.

    So `run_name: 007` keeps its zeros and `peak_learning_rate: 1e-3`, a text to YAML 1.1, is still a number to us.
    """
    import yaml  # here, so that --help does not wait for it

    def plain(node: yaml.Node, depth: int) -> Any:
        if depth > DEEPEST:
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
                    repeated.append(f"{shown(key.value)} (line {line})")
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
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"it is not valid YAML ({place}{' '.join(what.split())}); correct it") from None
    return {} if root is None else plain(root, 0)
