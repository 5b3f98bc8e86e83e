"""Faults that other engines really had, section A of the collection: positions, numerics, what greedy means.

Section B is in test_hard_cases_masks.py, C in test_hard_cases_heads.py, D in test_hard_cases_varlen.py, E in
test_hard_cases_resume.py, F in test_hard_cases_capacity.py and test_hard_cases_cancel.py; those that need a GPU are in
test_hard_cases_cuda.py. Cases about prefix reuse are left out: nothing here shares prefixes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, PreTrainedTokenizerFast

from cbbench import plugins
from cbbench.model.load import DTYPES, load
from cbbench.model.model import Model
from cbbench.model.reference import judge
from cbbench.request import Request
from tests.support.engines import (
    ATTENTIONS,
    as_it_comes,
    assert_exact,
    every_pairing,
    plain,
    requests,
    run,
    tiny,
    tiny_as,
)
from tests.support.step_hooks import run_watched, split_chunks


def saved(folder: Path, **generation: Any) -> Path:
    """The model of `tiny()` as a directory, as a hub would give it, with this generation_config.json."""
    as_it_comes().hf.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(300)}, "w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@every_pairing
def test_padding_never_shifts_a_position(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 1."""
    engine = run(model, requests(model, "3/8@0 5/8@0 17/8@0", ignore_eos=True), scheduler, attn, kv)
    assert len(engine.steps[0].rows) == 3, "all three in one batch"
    assert_exact(engine)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_the_tokenizers_padding_side_is_never_asked(tmp_path: Path, padding_side: str) -> None:
    """Case 3."""
    given = load(str(saved(tmp_path, eos_token_id=2)))
    assert given.tokenizer is not None
    given.tokenizer.padding_side = padding_side
    engine = run(given, requests(given, "3/8@0 17/8@0"), "static", "padded")
    assert sum(passed[2] for passed in engine.steps[0].passes) == 14, "the shorter prompt was padded"
    assert_exact(engine)


@every_pairing
def test_copies_of_one_prompt_in_a_batch_do_not_change_it(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 4, fp32."""
    (one,) = requests(model, "20/64@0", ignore_eos=True)
    copies = [Request(f"copy{i}", one.prompt_ids, 64, 0.0, True, one.output_ids) for i in range(8)]
    engine = run(model, copies, scheduler, attn, kv, max_num_seqs=8)
    assert max(step.live for step in engine.steps) == 8
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_bf16_ends_exact_or_with_a_reported_tie_or_is_refused_by_name(attn: str) -> None:
    """Cases 4 and 5, bf16 on CPU: a difference has a position and a gap between the two best logits."""
    found = plugins.find("attn", attn)
    why_not = found.cannot_run("cpu", "bfloat16", found.Options())
    if why_not:
        assert attn in why_not and "bfloat16" in why_not
        return
    model = tiny_as("bfloat16", "cpu")
    (one,) = requests(model, "20/64@0", ignore_eos=True)
    copies = [Request(f"copy{i}", one.prompt_ids, 64, 0.0, True, one.output_ids) for i in range(8)]
    engine = run(model, copies, attn=attn, max_num_seqs=8)
    for sequence in engine.sequences:
        verdict = judge(model, sequence.request, sequence.output_ids)
        differs = tuple(sequence.output_ids) != one.output_ids
        assert verdict.outcome == ("tie" if differs else "exact")
        assert (verdict.position is not None and verdict.gap is not None) == differs


def test_a_wrong_token_is_wrong_and_names_the_position_and_the_gap(model: Model) -> None:
    """Cases 4 and 5: never a silent pass. What is compared with itself plus a fault must not be a tie."""
    (request,) = requests(model, "20/16@0", ignore_eos=True)
    assert request.output_ids is not None
    for position in (0, 7, 15):
        got = list(request.output_ids)
        got[position] = (got[position] + 1) % 300
        verdict = judge(model, request, got)
        assert (verdict.outcome, verdict.position) == ("wrong", position)
        assert (
            (verdict.expected, verdict.got) == (request.output_ids[position], got[position])
            and verdict.gap is not None
            and verdict.gap > 1e-3
        )
    assert judge(model, request, list(request.output_ids[:9])).outcome == "wrong", "a missing token"
    assert judge(model, request, [*request.output_ids, 5]).outcome == "wrong", "one too many"
    assert judge(model, Request("r", request.prompt_ids, 16), list(request.output_ids)).outcome == "unverified"


def test_a_tie_is_a_token_that_is_nearly_as_good_and_never_the_worst_one() -> None:
    """In half precision most positions have a second token within the tolerance; the token that came is what counts."""
    model = tiny_as("bfloat16", "cpu")
    (request,) = requests(model, "20/24@0", ignore_eos=True)
    assert request.output_ids is not None
    num_ties = 0
    for position, expected in enumerate(request.output_ids):
        ids = torch.tensor([[*request.prompt_ids, *request.output_ids[:position]]])
        logits = plain(model).hf(input_ids=ids, use_cache=False).logits[0, -1].float().detach()
        best, second, worst = *logits.topk(2).indices.tolist(), int(logits.argmin())
        assert best == expected or float(logits[best] - logits[expected]) < 0.25
        for token, rank in ((second, 2), (worst, len(logits))):
            verdict = judge(model, request, [*request.output_ids[:position], token, *request.output_ids[position + 1 :]])
            if token == expected:
                continue
            assert verdict.gap == pytest.approx(abs(float(logits[expected] - logits[token])), abs=0.1)
            assert (verdict.outcome == "tie") == (verdict.gap is not None and verdict.gap < 0.25)
            if token == worst:
                assert verdict.outcome == "wrong" and verdict.rank is not None and verdict.rank > 0.9 * rank
            num_ties += verdict.outcome == "tie"
    assert num_ties, "some second token is a tie"


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_the_token_budget_does_not_change_the_tokens_of_a_long_prompt(model: Model, attn: str) -> None:
    """Case 6."""
    made = requests(model, "300/32@0", ignore_eos=True)
    engines = [run(model, made, "chunked", attn, options={"scheduler.max_num_batched_tokens": budget}) for budget in (7, 64, 512)]
    assert [split_chunks(engine) for engine in engines] == [42, 4, 0]
    for engine in engines:
        assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_prompts_around_256_are_the_same_alone_and_in_a_batch_of_1024(model: Model, attn: str) -> None:
    """Case 7, fp32."""
    made = requests(model, "255/6@0 256/6@0 257/6@0 256/6@0", ignore_eos=True)
    together = run(model, made, attn=attn)
    assert sum(row[3] for row in together.steps[0].rows) == 1024
    assert_exact(together)
    for request in made:
        assert_exact(run(model, [request], attn=attn))


@every_pairing
def test_load_does_not_change_tokens(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 8, fp32."""
    made = requests(model, "4/6@0 19/3@0 7/8@0 12/2@0 3/9@0 9/5@0")
    alone, together = (run(model, made, scheduler, attn, kv, max_num_seqs=n) for n in (1, 16))
    assert (max(s.live for s in alone.steps), max(s.live for s in together.steps)) == (1, 6)
    assert [s.output_ids for s in alone.sequences] == [s.output_ids for s in together.sequences]
    assert_exact(alone)


def test_a_shipped_repetition_penalty_is_used_by_neither_side_and_reported(tmp_path: Path) -> None:
    """Case 10."""
    plain = tiny()
    given = load(str(saved(tmp_path, repetition_penalty=1.1, do_sample=True, eos_token_id=2)))
    made = requests(given, "20/24@0", ignore_eos=True)
    ids = torch.tensor([made[0].prompt_ids])
    penal = GenerationConfig(max_new_tokens=24, repetition_penalty=2.0, do_sample=False, pad_token_id=0, eos_token_id=None)
    penalised = given.hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=penal)[0, 20:].tolist()
    assert penalised != list(made[0].output_ids or ()), "a penalty would show on this prompt"
    assert given.neutralised == {"repetition_penalty": 1.1, "do_sample": True}
    assert made[0].output_ids == requests(plain, "20/24@0", ignore_eos=True)[0].output_ids
    assert_exact(run(given, made))


def test_a_model_directory_without_a_tokenizer_loads(tmp_path: Path) -> None:
    """Prompts may be given as ids, so weights and a configuration are enough."""
    as_it_comes().hf.save_pretrained(tmp_path)
    given = load(str(tmp_path))
    assert given.tokenizer is None
    assert_exact(run(given, requests(given, "5/5@0")))


@every_pairing
def test_a_one_token_answer_takes_one_pass(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 11."""
    for spec in ("1/1@0", "9/1@0"):
        engine = run(model, requests(model, spec), scheduler, attn, kv)
        assert sum(len(step.passes) for step in engine.steps) == 1
        assert_exact(engine)


def test_every_dtype_a_model_can_have_has_a_tolerance() -> None:
    """Case 8: what is promised in which dtype is stated for all of them."""
    from cbbench.model.reference import TIE_TOLERANCE

    assert set(TIE_TOLERANCE) == set(DTYPES.values())


def test_hooks_see_each_pass(model: Model) -> None:
    """The looking glass of these tests itself: one call before and one after each step."""
    seen: list[str] = []
    engine = run_watched(
        model, requests(model, "5/3@0"), before=lambda *_: seen.append("before"), after=lambda *_: seen.append("after")
    )  # fmt: skip
    assert seen == ["before", "after"] * len(engine.steps) and len(engine.steps) == 3
