"""Why an update is missing: what reports list of it, in one line that is not too long."""

import pytest

from fedpart.federated.cohorts import CohortSum, tally
from fedpart.updates.errors import LONGEST, ClientError, Refusal, brief, skipped


def test_what_reports_list_of_a_client_that_is_left_out():
    refused = ClientError.refused(3, 2, Refusal("size", "w_1 is too long"))
    says = "The update of client 3 in round 2 was refused: w_1 is too long."
    assert skipped(3, refused) == {"client": 3, "category": "size", "reason": says}
    failed = {"client": 1, "category": "client_error", "reason": "no labels"}
    assert skipped(1, ValueError("no\nlabels")) == failed
    silent = skipped(4, ClientError.silent(4, 5))
    assert silent["category"] == "no_answer" and "Client 4 did not answer in round 5" in silent["reason"]
    assert ClientError("x").category == "client_error"


@pytest.mark.parametrize(("round", "when"), [(None, ""), (7, " in round 7")])
def test_a_failure_names_client_round_and_cause(round, when):
    error = ClientError.of(2, round, ValueError("a\n  b"))
    assert str(error) == f"Client 2 failed{when}: ValueError: a b"


def test_a_sentence_is_cut_at_its_longest():
    assert brief("a" * LONGEST) == "a" * LONGEST
    assert brief("a" * (LONGEST + 1)) == "a" * (LONGEST - 3) + "..."
    assert brief(" a\tb\x00c\n") == "a b c"
    hidden = brief(" " * 2 * LONGEST + "b")
    assert hidden == "", "what lies far behind is not looked at"
    assert brief(" " * (2 * LONGEST - 1) + "bc") == "b"


def test_who_is_taken_and_how_often_each_category_occurs():
    skips = [{"client": c, "category": kind} for c, kind in ((4, "size"), (1, "late"), (9, "size"))]
    assert CohortSum([1, 2, 4, 7], skipped=skips).taken == [2, 7]
    counts = tally(skips, ["dtype", "late"])
    assert list(counts.items()) == [("dtype", 1), ("late", 2), ("size", 2)]
    assert tally([]) == {}
