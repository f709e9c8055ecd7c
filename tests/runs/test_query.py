"""The language of --where: what it means, and that all that can be typed ends in an answer or a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from runs.query import (
    KEYWORDS,
    LITERALS,
    MAX_DEPTH,
    NUMBER,
    And,
    Comparison,
    Expression,
    IsSet,
    Not,
    Or,
    leaves,
    parse,
    text_of,
)

RUN: dict[str, Any] = {
    "ebt_type": "time_embed",
    "valid_loss": 1.9,
    "float_precision": "32",
    "mcmc_step_size": "auto",
    "max_steps": 800,
    "compile_model": False,
    "no_mcmc_detach": True,
    "warm_up_steps": None,
    "tags": ["paper", "seed study"],
    "began": "2026-11-16 09:17:17",
    "learning_rate/decay": 1e-3,
    "broken": float("nan"),
}


def written(expression: Expression) -> str:
    """An expression as a person would type it."""
    if isinstance(expression, Comparison):
        value = expression.value
        if isinstance(value, str):
            text = f'"{value}"' if value.lower() in LITERALS or NUMBER.fullmatch(value) else quoted(value)
        else:
            text = "none" if value is None else text_of(value)
        return f"{quoted(expression.field)}{expression.sign}{text}"
    if isinstance(expression, IsSet):
        return quoted(expression.field)
    if isinstance(expression, Not):
        return f"not {bracketed(expression.part)}"
    return (" and " if isinstance(expression, And) else " or ").join(map(bracketed, expression.parts))


def quoted(word: str) -> str:
    is_bare = re.fullmatch(r"[^\s\"'()=<>~!]+", word) and word.lower() not in KEYWORDS
    return word if is_bare else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def bracketed(part: Expression) -> str:
    return f"({written(part)})" if isinstance(part, And | Or) else written(part)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("ebt_type=time_embed", True),
        ("ebt_type==adaln", False),
        ("ebt_type!=adaln", True),
        ("ebt_type~^TIME", True),
        ("ebt_type ~ 'e_e'", True),
        ("valid_loss<2 and ebt_type=time_embed", True),
        ("valid_loss<2 and ebt_type=adaln or max_steps>=800", True),
        ("valid_loss<2 and (ebt_type=adaln or max_steps>800)", False),
        ("not valid_loss<2 or max_steps<=799", False),
        ("NOT (valid_loss>2 OR max_steps!=800)", True),
        ("float_precision=32", True),
        ("float_precision<64", True),
        ("max_steps=8e2", True),
        ("max_steps='800'", True),
        ("mcmc_step_size=auto", True),
        ("mcmc_step_size<2", False),
        ("compile_model=false", True),
        ("compile_model=0", False),
        ("compile_model", False),
        ("no_mcmc_detach", True),
        ("warm_up_steps=none", True),
        ("warm_up_steps!=none", False),
        ("warm_up_steps<5", False),
        ("not warm_up_steps<5", True),
        ("absent", False),
        ("absent=null", True),
        ("absent!=5", True),
        ("tags=paper", True),
        ("tags='seed study'", True),
        ("tags=seed", False),
        ("tags~seed", True),
        ("tags!=paper", False),
        ("began>2026-11-15", True),
        ("began>2026-11-17", False),
        ("began<2027", True),
        ('"learning_rate/decay"<=0.001', True),
        ("learning_rate/decay<=1e-3", True),
        ("broken=nan", True),
        ("broken<1", False),
        ("valid_loss=nan", False),
    ],
)
def test_what_fits(text: str, fits: bool) -> None:
    assert parse(text).fits(RUN.get) is fits
    assert parse(written(parse(text))).fits(RUN.get) is fits


@pytest.mark.parametrize(
    ("text", "sentence", "mark"),
    [
        ("", "a setting or a metric belongs here, such as valid_loss<2.", "^"),
        ("valid_loss<", "a value belongs after <: a number, a word, true, false or none.", " " * 11 + "^"),
        ("a=1 b=2", "write and or or before this.", " " * 4 + "^"),
        ("(a=1", "this bracket is not closed.", "^"),
        ("a=1)", "this bracket closes nothing.", " " * 3 + "^"),
        ("a='x", "this quote is not closed.", "  ^"),
        ("a!2", "write != here.", " ^"),
        ("1<a<2", "a comparison has two sides: write and between two of them.", "   ^"),
        ("a=1 and", "a setting or a metric belongs here, such as valid_loss<2.", " " * 7 + "^"),
        ("a=1 and or b", "a setting or a metric belongs here, such as valid_loss<2.", " " * 8 + "^^"),
        (
            "a~'('",
            "this is no regular expression (missing ), unterminated subpattern at position 0): "
            "put a backslash before signs that are meant as such.",
            "  ^^^",
        ),
        ("not " * 51 + "a", f"this is nested more than {MAX_DEPTH} deep.", " " * 200 + "^^^"),
    ],
)
def test_mistakes_are_pointed_to(text: str, sentence: str, mark: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert str(caught.value).split("\n") == [f"--where: {sentence}", f"  {text}", f"  {mark}"]


def test_what_a_terminal_would_obey_is_not_repeated() -> None:
    with pytest.raises(UserError) as caught:
        parse("a=1 \x1b[2J")
    assert "\x1b" not in str(caught.value)


def plain_values() -> st.SearchStrategy[Any]:
    return st.text() | st.booleans() | st.none() | st.floats(allow_nan=False)


def comparisons() -> st.SearchStrategy[Expression]:
    signs = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
    patterns = st.text().map(re.escape)
    return (
        st.builds(Comparison, st.text(), signs, plain_values())
        | st.builds(Comparison, st.text(), st.just("~"), patterns)
        | st.builds(IsSet, st.text())
    )


def joined(kind: type[And] | type[Or]) -> Any:
    return lambda parts: kind(tuple(part for part in parts))


def expressions() -> st.SearchStrategy[Expression]:
    def larger(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        # the grammar joins a chain of one kind into one node, so a node has no part of its own kind without brackets
        several = st.lists(parts, min_size=2, max_size=3)
        return st.builds(Not, parts) | several.map(joined(And)) | several.map(joined(Or))

    return st.recursive(comparisons(), larger, max_leaves=8)


@given(expressions())
def test_what_is_written_down_reads_the_same(expression: Expression) -> None:
    assert parse(written(expression)) == expression


@given(
    st.text() | st.text(alphabet="ab1.=<>!~()'\"\\ andornt", max_size=30), st.dictionaries(st.text(), plain_values())
)
def test_anything_typed_gives_an_answer_or_a_sentence(text: str, run: dict[str, Any]) -> None:
    try:
        expression = parse(text)
    except UserError as problem:
        assert str(problem).startswith("--where: ")
    else:
        assert isinstance(expression.fits(run.get), bool)
        assert isinstance(expression.fits(lambda name: 1.5), bool)
        for leaf in leaves(expression):
            assert text[slice(*leaf.span)]
