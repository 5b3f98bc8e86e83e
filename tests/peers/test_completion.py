"""A completion is whole only if its reason and its counts agree with what was asked; anything else has its words."""

from __future__ import annotations

from typing import Any

import pytest

from cbbench.peers._completion import Completion, NotWholeError
from cbbench.peers.base import UNKNOWN, Answer
from cbbench.request import Request

EOS = frozenset({2})


def event(*ids: int, reason: str | None = None, text: str = "x", **more: Any) -> dict[str, Any]:
    told = {"token_ids": [*ids]} if ids else {}
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason, **told}], **more}


def texts(number: int, reason: str | None = "length") -> list[dict[str, Any]]:
    """Events that tell no ids, the last with its reason."""
    return [*(event() for _ in range(number - 1)), event(reason=reason)]


def usage(number: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": number, **more}}


def read(events: list[Any], asked: Request) -> tuple[str | None, Answer]:
    """Why it is not whole, and what is known of it; the moment of an event is its number."""
    completion, answer, why = Completion(asked), Answer(0), None
    try:
        for number, one in enumerate(events):
            completion.add(one, float(number))
        completion.check(EOS)
    except NotWholeError as error:
        why = str(error)
    completion.into(answer, EOS)
    return why, answer


def forced(number: int = 8) -> Request:
    return Request("a", (5, 6), number, ignore_eos=True)


def free(number: int = 8) -> Request:
    return Request("a", (5, 6), number)


@pytest.mark.parametrize(
    ("events", "asked", "ids", "times"),
    [
        ([event(7), event(8), event(9, reason="length"), usage(3)], forced(3), [7, 8, 9], [0, 1, 2]),
        ([event(7, 8), event(9, reason="length")], forced(3), [7, 8, 9], [0, 0, 1]),
        ([event(7), event(2, reason="stop"), usage(2)], free(), [7, 2], [0, 1]),
        ([event(7), event(2, reason="length")], free(2), [7, 2], [0, 1]),
        ([event(7), event(2), event(9, reason="length")], free(3), [7, 2], [0, 1]),
        ([event(7), event(2), event(9, reason="length")], forced(3), [7, 2, 9], [0, 1, 2]),
        ([*texts(3), usage(3)], forced(3), [UNKNOWN] * 3, [0, 1, 2]),
        (texts(3), forced(3), [UNKNOWN] * 3, [0, 1, 2]),
        ([*texts(2), usage(4)], forced(4), [UNKNOWN] * 4, None),
        ([*texts(2, "stop"), usage(3)], free(), [UNKNOWN] * 3, None),
        ([event(text="", reason="stop"), usage(1)], free(), [UNKNOWN], None),
        ([event(7, usage={"completion_tokens": 1}), event(8, reason="length", usage={"completion_tokens": 2})], forced(2), [7, 8], [0, 1]),
        ([event(7, reason="length"), {"usage": {"completion_tokens": 1}}], forced(1), [7], [0]),
    ],
)  # fmt: skip
def test_whole_answers(events: list[Any], asked: Request, ids: list[int], times: list[float] | None) -> None:
    assert read(events, asked) == (None, Answer(0, ids, times))


ERROR = {"object": "error", "message": "out of memory", "code": 500}


@pytest.mark.parametrize(
    ("events", "asked", "said", "ids"),
    [
        ([event(7), event(8, reason="abort"), usage(2)], forced(), 'finish_reason "abort" after 2 of 8 tokens', [7, 8]),
        ([event(7), event(reason="content_filter")], free(), 'finish_reason "content_filter" after 1 of 8 tokens', [7]),
        ([event(7), ERROR], forced(), 'an event is no completion: {"object": "error", "message": "out of memory", "code": 500}', [7]),
        ([event(7), {}], forced(), "an event is no completion: {}", [7]),
        ([event(7), event(8), event(9, reason="length")], forced(), 'finish_reason "length" after 3 of 8 tokens', [7, 8, 9]),
        ([*texts(3), usage(3)], forced(), 'finish_reason "length" after 3 of 8 tokens', [UNKNOWN] * 3),
        ([event(*range(3, 27), reason="length"), usage(24)], forced(), "more tokens than the 8 that were asked for", [*range(3, 11)]),
        ([*texts(8), usage(24)], forced(), "24 tokens, 8 were asked for", [UNKNOWN] * 8),
        (texts(12), forced(24),
         "it tells neither token ids nor usage, and 12 events with text do not say how many tokens (24 were asked for)", []),
        (texts(3, "stop"), free(),
         "it tells neither token ids nor usage, and 3 events with text do not say how many tokens (8 were asked for)", []),
        ([event(7), event(8)], forced(), "it ended without a finish_reason after 2 of 8 tokens", [7, 8]),
        ([event(7), event(2, reason="stop"), usage(2)], forced(),
         'finish_reason "stop" after 2 of 8 tokens, and it was asked to ignore an end (ignore_eos)', [7, 2]),
        ([event(7), event(8, reason="stop")], free(),
         'finish_reason "stop" at token 8, which is no end-of-sequence token of this model', [7, 8]),
        ([event(7), event(8, reason="length"), usage(3)], forced(2), "2 token ids, and usage counts 3 tokens", [7, 8]),
        ([event(text="", reason="stop"), usage(0)], free(), "no token", []),
        ([event(7, reason="length"), event(8)], forced(1), "tokens behind its end", [7]),
        ([{"choices": [{"index": 1, "text": "x"}]}], forced(), "a second completion, and one was asked for", []),
    ],
)  # fmt: skip
def test_any_other_end_has_its_words_and_what_came_is_kept(events: list[Any], asked: Request, said: str, ids: list[int]) -> None:
    why, answer = read(events, asked)
    assert why is not None and why.startswith(said) and answer.output_ids == ids


@pytest.mark.parametrize(
    "bad",
    [{"choices": {}}, {"choices": [None]}, {"choices": ["x"]}, {"choices": [{"text": 5}]}, {"choices": [{"token_ids": 5}]},
     {"choices": [{"token_ids": ["7"]}]}, {"choices": [{"token_ids": [-1]}]}, {"choices": [{"token_ids": [True]}]},
     {"choices": [{"text": "a", "finish_reason": 3}]}, usage("three"), usage(-1), usage(2.0), usage(True), {"choices": [], "usage": [1]},
     usage(1, prompt_tokens_details=[3]), usage(1, prompt_tokens_details={"cached_tokens": "3"}), {"usage": 3}],
    ids=str,
)  # fmt: skip
def test_an_event_of_another_shape_is_no_completion(bad: Any) -> None:
    why, answer = read([event(7), bad], forced())
    assert why is not None and why.startswith("an event is no completion: ") and answer.output_ids == [7]


def test_a_stream_of_events_without_tokens_is_not_read_for_ever() -> None:
    why, answer = read([{"choices": []}] * 1000, forced(2))
    assert why is not None and "and no end" in why and answer.output_ids == []
