"""Any OpenAI-compatible server, as a client sees it."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import uuid4

from pydantic import Field

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.peers._completion import Completion, NotWholeError
from cbbench.peers._openai_client import TIMEOUT_S, Server, ServerError
from cbbench.peers._server_url import checked_url
from cbbench.peers.base import Answer, Peer
from cbbench.request import Request
from cbbench.strategy import StrictOptions

FLAGS = ("--set peer.url", "--set peer.model")
IDS, SALT = "return_token_ids", "cache_salt"  # vLLM's words: tell the ids; share no prefix with another salt
REFUSALS = (400, 422, 500, 501)  # of a word, or of a form of prompt
PAUSES_S = (1.0, 3.0, 9.0)  # before a probe is sent again to a server that is busy or starting
NOT_TOLD = "its server does not tell whether its prefix cache held prompts of earlier rounds"


class OpenAi(Peer):
    """Streams /completions of a server (vLLM, SGLang, llama.cpp, ...) with prompts as token ids, max_num_seqs requests at a
    time, greedily; TTFT and gaps are what the stream shows.

    Cost: weights, precision and threads are the server's. Tokens are checked where it returns their ids (vLLM's
    return_token_ids); elsewhere they are counted, and unverified. Several tokens in one event share a moment; where neither ids
    nor one event a token are given, moments of tokens are null. An answer that ends otherwise than was asked is a failed request.
    Each round has its own cache_salt, so that vLLM's prefix cache holds nothing of an earlier one.
    Use when: the system to compare with is a server; start it with the same model and dtype.
    """

    class Options(StrictOptions):
        url: str | None = Field(None, exclude=True, description="where /completions lies, like http://localhost:8000/v1")
        model: str | None = Field(None, exclude=True, description="its name there; the first that the server lists without")
        timeout_s: float = Field(TIMEOUT_S, gt=0, exclude=True, description="a server that sends nothing new for so long has failed")

    options: Options
    is_in_process = False

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        assert isinstance(options, cls.Options)
        if not options.url:
            return "say where the server is: --set peer.url=http://localhost:8000/v1"
        checked_url(options.url, FLAGS[0])
        return None

    def start(self, requests: list[Request]) -> None:
        self.server = Server(self.options.url or "", self.options.model, FLAGS, self.options.timeout_s)
        self.version = self.server.model
        self.salt = ""
        self.words = self._known_words(Request("probe", [*requests[0].prompt_ids[:1]] if requests else [0], 1))

    def _known_words(self, probe: Request) -> tuple[str, ...]:
        """Those of vLLM's words that the server takes. Only its refusal of a word decides: a server that is busy is asked again."""
        for words in ((IDS, SALT), (IDS,), (SALT,)):
            try:
                self._probe(probe, words)
                return words
            except ServerError as error:
                if error.code not in REFUSALS:
                    raise
        try:
            self._probe(probe, ())
        except ServerError as error:  # of what every server should take
            if error.code in REFUSALS and self._takes_text():
                raise UserError(
                    f"{self.server.url}/completions takes text, but no prompt of token ids, which every request here is"
                ) from error
            raise
        return ()

    def _takes_text(self) -> bool:
        try:
            return bool(self.server.ask("completions", {"model": self.server.model, "prompt": "a", "max_tokens": 1}))
        except ServerError:
            return False

    def _probe(self, probe: Request, words: tuple[str, ...]) -> None:
        self.words, self.salt = words, "probe"
        for pause_s in (*PAUSES_S, None):
            try:
                for _ in self._events(probe):
                    pass
                return
            except ServerError as error:
                if pause_s is None or not error.may_pass:
                    raise
            RealClock().wait_until(pause_s)

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        self.salt = uuid4().hex  # a round begins cold
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        pool = ThreadPoolExecutor(self.setting.max_num_seqs)
        try:
            asked = [pool.submit(self._answer, index, requests[index], clock) for index in order]
            told = [future.result() for future in asked]
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for what is under way alone
        self.notes = self._notes([completion for _, completion in told])
        return [answer for answer, _ in told]

    def _answer(self, index: int, request: Request, clock: RealClock) -> tuple[Answer, Completion]:
        clock.wait_until(request.arrival_s)
        answer, completion = Answer(index, first_scheduled_s=clock.now()), Completion(request)
        try:
            with closing(self._events(request)) as events:
                for event in events:
                    completion.add(event, clock.now())
            completion.check(self.setting.eos_ids)
        except ServerError as error:
            answer.failed = str(error)
        except NotWholeError as error:
            answer.failed = f"{self.server.url}/completions: {error}"
        answer.ended_s = clock.now()
        completion.into(answer, self.setting.eos_ids)
        return answer, completion

    def _events(self, request: Request) -> Generator[dict[str, Any], None, None]:
        body = {
            "model": self.server.model, "prompt": list(request.prompt_ids), "max_tokens": request.max_new_tokens, "temperature": 0,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        values: dict[str, Any] = {IDS: True, SALT: self.salt}
        body |= {word: values[word] for word in self.words}
        return self.server.stream("completions", body | ({"ignore_eos": True} if request.ignore_eos else {}))

    def _notes(self, told: list[Completion]) -> tuple[str, ...]:
        """What of the round could not be made cold, or is not known to have been."""
        cached = [completion.cached_prompt_tokens for completion in told]
        number = sum(filter(None, cached))
        if SALT in self.words and any(completion.tells_ids for completion in told):
            return ()  # it is vLLM, or understands it as well
        if number:
            return (f"{number} prompt tokens came from its server's prefix cache, which may hold prompts of earlier rounds",)
        return (NOT_TOLD,) if None in cached else ()

    def stop(self) -> None:
        if hasattr(self, "server"):
            self.server.close()
