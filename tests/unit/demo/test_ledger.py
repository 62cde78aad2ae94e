"""What the demo's workers write down."""

from __future__ import annotations

from sharecoord.demo.ledger import Outcome, Unanswered


def test_answers_belong_to_acknowledgements_in_the_order_of_both() -> None:
    """A record that was released may come again before the answer to its release."""
    unanswered = Unanswered()
    unanswered.said(7, 1, Outcome.RELEASE)
    unanswered.said(8, 1, Outcome.REJECT)
    unanswered.said(7, 2, Outcome.ACCEPT)
    assert unanswered.answered(7) == (1, Outcome.RELEASE)
    assert unanswered.answered(7) == (2, Outcome.ACCEPT)
    assert unanswered.answered(8) == (1, Outcome.REJECT)


def test_an_answer_to_nothing_is_about_nothing() -> None:
    unanswered = Unanswered()
    unanswered.said(7, 1, Outcome.ACCEPT)
    unanswered.answered(7)
    assert unanswered.answered(7) == (0, Outcome.NONE)
    assert unanswered.answered(9) == (0, Outcome.NONE)
