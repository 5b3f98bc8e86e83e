"""Whether a completion is whole: what a server told of its tokens, its end and its counts, held to what was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from cbbench.peers.base import UNKNOWN, Answer, until_end
from cbbench.request import Request

SPARE_EVENTS = 16  # beside two a token: roles, an end, usage


class NotWholeError(Exception):
    """Why an answer does not count; the words are the request's failure."""


def refuse_end(reason: Any, num_tokens: int | None, max_new_tokens: int, ignore_eos: bool) -> None:
    """An answer ends by its length with as many tokens as were asked for, or by itself where it may. Raises NotWholeError."""
    after = "" if num_tokens is None else f" after {num_tokens} of {max_new_tokens} tokens"
    if num_tokens is not None and num_tokens > max_new_tokens:
        raise NotWholeError(f"{num_tokens} tokens, {max_new_tokens} were asked for")
    if reason is None:
        raise NotWholeError(f"it ended without a finish_reason{after}")
    if reason not in ("length", "stop"):
        raise NotWholeError(f"finish_reason {json.dumps(reason)}{after}")
    if reason == "length" and num_tokens not in (None, max_new_tokens):
        raise NotWholeError(f'finish_reason "length"{after}')
    if reason == "stop" and ignore_eos:
        raise NotWholeError(f'finish_reason "stop"{after}, and it was asked to ignore an end (ignore_eos)')


@dataclass
class Completion:
    """What the events of a stream have told so far.

    Tokens are counted by their ids; where the server tells none, by its usage; where it tells neither, one event with text is
    one token if there are as many as were asked for, and nothing else is guessed. A token's moment is that of its event; without ids it
    is known only where each token had an event of its own."""

    request: Request
    ids: list[int] = field(default_factory=list)
    id_times_s: list[float] = field(default_factory=list)
    text_times_s: list[float] = field(default_factory=list)  # of events with text
    tells_ids: bool = False
    reason: Any = None
    counted: int | None = None  # by the server's usage
    cached_prompt_tokens: int | None = None  # that its prefix cache answered, by its usage
    num_events: int = 0

    def add(self, event: dict[str, Any], now_s: float) -> None:
        """Raises NotWholeError for what is no part of the one completion that was asked for."""
        self.num_events += 1
        choices = event.get("choices")
        if not isinstance(choices, list) and not (choices is None and isinstance(event.get("usage"), dict)):
            raise NotWholeError(f"an event is no completion: {_shown(event)}")
        try:
            self._add_usage(event.get("usage"))
            for choice in choices or []:
                self._add_choice(choice, now_s)
        except (TypeError, AttributeError) as error:
            raise NotWholeError(f"an event is no completion: {_shown(event)}") from error
        most = self.request.max_new_tokens
        if max(len(self.ids), len(self.text_times_s)) > most:
            raise NotWholeError(f"more tokens than the {most} that were asked for")
        if self.num_events > 2 * most + SPARE_EVENTS:
            raise NotWholeError(f"{self.num_events} events for {most} tokens, and no end")

    def _add_usage(self, usage: Any) -> None:
        if usage is not None:
            self.counted = _count(usage.get("completion_tokens"), self.counted)
            details = usage.get("prompt_tokens_details") or {}
            self.cached_prompt_tokens = _count(details.get("cached_tokens"), self.cached_prompt_tokens)

    def _add_choice(self, choice: dict[str, Any], now_s: float) -> None:
        ids, text, reason = choice.get("token_ids"), choice.get("text"), choice.get("finish_reason")
        if choice.get("index") not in (None, 0):
            raise NotWholeError("a second completion, and one was asked for")
        if self.reason is not None and (ids or text or reason not in (None, self.reason)):
            raise NotWholeError(f"tokens behind its end ({_shown(choice)})")
        if ids is not None:
            self.tells_ids = True
            self.ids += [_id(token) for token in ids]
            self.id_times_s += [now_s] * len(ids)
        if not isinstance(text, str | None) or not isinstance(reason, str | None):
            raise TypeError
        if text:
            self.text_times_s.append(now_s)
        self.reason = reason if reason is not None else self.reason

    @property
    def num_tokens(self) -> int | None:
        """None where nobody can tell."""
        if self.tells_ids:
            return len(self.ids)
        one_each = self.reason == "length" and len(self.text_times_s) == self.request.max_new_tokens
        return len(self.text_times_s) if self.counted is None and one_each else self.counted

    def check(self, eos_ids: frozenset[int]) -> None:
        """At its end. Raises NotWholeError unless it is whole."""
        request, number = self.request, self.num_tokens
        if self.tells_ids and self.counted is not None and self.counted != number:
            raise NotWholeError(f"{number} token ids, and usage counts {self.counted} tokens")
        refuse_end(self.reason, number, request.max_new_tokens, request.ignore_eos or not eos_ids)
        if number is None:
            raise NotWholeError(
                f"it tells neither token ids nor usage, and {len(self.text_times_s)} events with text do not say how many tokens "
                f"({request.max_new_tokens} were asked for)"
            )
        if number == 0:
            raise NotWholeError("no token")
        if self.reason == "stop" and self.tells_ids and self.ids[-1] not in eos_ids:
            raise NotWholeError(f'finish_reason "stop" at token {self.ids[-1]}, which is no end-of-sequence token of this model')

    def into(self, answer: Answer, eos_ids: frozenset[int]) -> None:
        """Tokens and moments as far as they are known, also of an answer that is not whole."""
        if self.tells_ids:
            answer.output_ids = until_end(self.ids, self.request, eos_ids)
            answer.token_times_s = self.id_times_s[: len(answer.output_ids)]
        else:
            number = self.num_tokens or 0
            answer.output_ids = [UNKNOWN] * min(number, self.request.max_new_tokens)
            answer.token_times_s = self.text_times_s if number == len(self.text_times_s) else None


def _count(value: Any, before: int | None) -> int | None:
    if value is None:
        return before
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _shown(event: Any) -> str:
    return json.dumps(event, ensure_ascii=False)[:200]
