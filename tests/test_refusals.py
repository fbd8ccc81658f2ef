"""A table of refusals notices what is taken, another error, another sentence, and several lines."""

import pytest
import refusals


def refuse(error, sentence):
    raise error(sentence)


def test_all_that_is_wrong_is_told_at_once():
    rows = [
        ("right", lambda: refuse(ValueError, "rounds cannot be 0"), ValueError, "^rounds cannot"),
        ("another type", lambda: refuse(TypeError, "rounds cannot be 0"), ValueError, "rounds"),
        ("other words", lambda: refuse(ValueError, "no"), ValueError, "rounds"),
        ("two lines", lambda: refuse(ValueError, "rounds\nno"), ValueError, "rounds"),
        ("nothing", lambda: None, ValueError, "rounds"),
    ]
    with pytest.raises(AssertionError) as caught:
        refusals.check(rows)
    text = str(caught.value)
    assert text.startswith("4 of 5")
    for what in ("another type: TypeError", "other words: says", "two lines: takes", "nothing: was taken"):
        assert what in text
    assert "right:" not in text


def test_an_empty_table_is_no_test():
    with pytest.raises(AssertionError, match="empty"):
        refusals.check([])
