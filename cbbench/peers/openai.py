"""Any OpenAI-compatible server, as a client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.peers._openai_client import Server
from cbbench.peers.base import UNKNOWN, Answer, Peer, until_end
from cbbench.request import Request
from cbbench.strategy import StrictOptions

FLAGS = ("--set peer.url", "--set peer.model")


class OpenAi(Peer):
    """Streams /completions of a server (vLLM, SGLang, llama.cpp, ...) with prompts as token ids, max_num_seqs requests at a
    time, greedily; TTFT and gaps are what the stream shows.

    Cost: weights, precision and threads are the server's. Tokens are checked where it returns their ids (vLLM's
    return_token_ids); elsewhere they are counted, and unverified. Several tokens in one event share a moment; where neither ids
    nor one event a token are given, moments of tokens are null.
    Use when: the system to compare with is a server; start it with the same model and dtype.
    """

    class Options(StrictOptions):
        url: str | None = Field(None, exclude=True, description="where /completions lies, like http://localhost:8000/v1")
        model: str | None = Field(None, exclude=True, description="its name there; the first that the server lists without")

    options: Options
    is_in_process = False

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        assert isinstance(options, cls.Options)
        if not options.url:
            return "say where the server is: --set peer.url=http://localhost:8000/v1"
        Server(options.url, "any", FLAGS)  # refuses what is no URL
        return None

    def start(self, requests: list[Request]) -> None:
        self.server = Server(self.options.url or "", self.options.model, FLAGS)
        self.version = self.server.model
        self.extras: dict[str, Any] = {"return_token_ids": True}
        probe = Request("probe", [*requests[0].prompt_ids[:1]] if requests else [0], 1)
        try:
            list(self._events(probe))
        except UserError:  # a server that takes no word it does not know
            self.extras = {}
            list(self._events(probe))

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        pool = ThreadPoolExecutor(self.setting.max_num_seqs)
        try:
            asked = [pool.submit(self._answer, index, requests[index], clock) for index in order]
            return [future.result() for future in asked]
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for what is under way alone

    def _answer(self, index: int, request: Request, clock: RealClock) -> Answer:
        clock.wait_until(request.arrival_s)
        answer = Answer(index, token_times_s=[], first_scheduled_s=clock.now())
        assert answer.token_times_s is not None
        produced: int | None = None
        tells_ids = False
        try:
            for event in self._events(request):
                now_s = clock.now()
                produced = (event.get("usage") or {}).get("completion_tokens", produced)
                for choice in event.get("choices") or []:
                    tells_ids |= choice.get("token_ids") is not None
                    ids = choice.get("token_ids") or ([UNKNOWN] if choice.get("text") else [])
                    answer.output_ids += ids
                    answer.token_times_s += [now_s] * len(ids)
            if not tells_ids:
                _count(answer, produced)
        except UserError as error:
            answer.failed = str(error)
        except (AttributeError, TypeError) as error:
            answer.failed = f"{self.server.url}/completions: an event is no completion: {error}"
        answer.ended_s = clock.now()
        if tells_ids:
            answer.output_ids = until_end(answer.output_ids, request, self.setting.eos_ids)
            answer.token_times_s = answer.token_times_s[: len(answer.output_ids)]
        return answer

    def _events(self, request: Request) -> Iterator[Any]:
        body = {
            "model": self.server.model, "prompt": list(request.prompt_ids), "max_tokens": request.max_new_tokens, "temperature": 0,
            "stream_options": {"include_usage": True}, **self.extras,
        }  # fmt: skip
        return self.server.stream("completions", body | ({"ignore_eos": True} if request.ignore_eos else {}))


def _count(answer: Answer, produced: int | None) -> None:
    """Without ids the server's own count holds; where its events are not one a token, no token has a moment."""
    if produced is not None and produced != len(answer.output_ids):
        answer.output_ids = [UNKNOWN] * produced
        answer.token_times_s = None
    if not answer.output_ids:
        answer.failed = "the server showed no token and counted none"
