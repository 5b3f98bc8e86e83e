"""`make models`: every decoder architecture of the installed transformers as a tiny random model, through three arms; writes
docs/models.md.

Each has its own process, so that none can harm another. The configuration is the architecture's own with small numbers in it, and
with windows and chunks of 8, so that prompts and outputs go past them.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cbbench.errors import UserError
from cbbench.model.load import _random, load, prepare_layers
from cbbench.model.model import Model
from cbbench.model.reference import greedy
from cbbench.request import Request
from tests.support.engines import run
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "models.md"
LIMIT_S = 150
ARMS = [("continuous", "varlen", "paged"), ("static", "padded", "cat"), ("chunked", "serial", "preallocated")]
LENGTHS = [(1, 4), (21, 9), (5, 24), (30, 3), (8, 12)]  # prompt and output tokens; past every window
VOCABULARY = 300
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "num_hidden_layers": 2, "n_layer": 2,
    "n_layers": 2,
    "decoder_layers": 2, "encoder_layers": 2, "num_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "n_inner": 96, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_top_k": 2, "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512,
    "max_sequence_length": 512, "sliding_window": 8, "attention_chunk_size": 8, "keep_window_size": 8, "window_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "word_embed_proj_dim": 64, "embedding_size": 64, "rotary_dim": 8, "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "global_head_dim": 16,
    "num_kv_shared_layers": 0, "is_decoder": True, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8,
    "state_size": 8, "num_global_key_value_heads": 2, "max_window_layers": 1, "use_sliding_window": True,
}  # fmt: skip


FIXED: dict[str, dict[str, Any]] = {  # where one number decides another
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 2, "num_shared_expert": 1},
    "ministral": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "kimi_linear": {"num_experts_per_token": 2, "num_experts_per_tok": 2, "num_experts": 4, "num_expert_group": 1, "topk_group": 1},
    "qwen4_exp_text": {"layer_types": ["linear_attention", "full_attention"], "ple_layer_ids": []},
    "dots1": {"n_shared_experts": 1, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "ernie4_5_moe": {"moe_k": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "zaya": {"num_experts_per_tok": 1},
    "dory": {"num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1, "layer_types": None},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "n_mamba_heads": 2},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_key_value_heads": 4},
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "prophetnet": {"num_decoder_layers": 2, "num_encoder_layers": 1, "num_decoder_attention_heads": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
}
DERIVED = {"prophetnet": {"num_hidden_layers"}, "xlnet": {"max_position_embeddings"}, "falcon": {"head_dim"}, "xlstm": {"v_head_dim"}}


def small(config: Any) -> dict[str, Any]:
    """The keys of SMALL that this configuration has, lists by layer cut to as many layers, and what is nested likewise."""
    written, unset = config.to_dict(), ("is_decoder", "sliding_window")  # None in a class that has them
    settable = {key for key in written if not isinstance(getattr(type(config), key, None), property)}
    changes: dict[str, Any] = {key: value for key, value in SMALL.items() if key in settable and (written[key] is not None or key in unset)}
    if "qk_rope_head_dim" in settable:  # latent attention: every head has keys of its own
        changes["num_key_value_heads"] = SMALL["num_attention_heads"]
        changes.pop("head_dim", None)
    if written.get("is_encoder_decoder"):
        changes["is_encoder_decoder"] = False  # its decoder alone
    kinds = written.get("layer_types")
    if kinds and "layer_types" in settable:
        changes["layer_types"] = [*dict.fromkeys(kinds)][:4]
        if len(changes["layer_types"]) == 1:
            changes["layer_types"] *= 2
        changes["num_hidden_layers"] = len(changes["layer_types"])
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            changes[key] = small(value)
    return changes


def config_of(name: str) -> dict[str, Any]:
    """A tiny configuration, as config.json would have it."""
    made = {**small(AutoConfig.for_model(name)), **FIXED.get(name, {}), "model_type": name}
    return {key: value for key, value in made.items() if key not in DERIVED.get(name, ())}


def requests_of(model: Model) -> list[Request]:
    """Random prompts and the tokens that the model as it loads gives to each alone."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for index, (num_prompt, num_new) in enumerate(LENGTHS):
        prompt = tuple(torch.randint(3, VOCABULARY, (num_prompt,), generator=generator).tolist())
        request = Request(f"r{index}", prompt, num_new, 0.0, True)
        made.append(replace(request, output_ids=tuple(greedy(model, list(prompt), num_new, True))))
    return made


def broken(path: str) -> str | None:
    """Why the tiny model does not even run by itself: that says nothing about how it is served."""
    try:
        hf = _random(path, torch.float32, Path.cwd())
        with torch.inference_mode():
            hf.eval()(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    except Exception as error:
        if "cannot be served" in str(error):
            raise
        return f"{type(error).__name__}: {error}".replace(f"{path}: ", "").splitlines()[0]
    return None


def tried(name: str) -> dict[str, Any]:
    """What becomes of one architecture: exact, refused (why), wrong, or failed (where)."""
    try:
        written = config_of(name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(written))
            if why := broken(str(path)):
                return {"outcome": "not built", "why": why}
            model = load(f"random:{path}", prepare=False)
            asked = requests_of(model)
            prepare_layers(model)
    except UserError as error:
        said = str(error)
        kind = "refused" if "cannot be served" in said else "not built"
        return {"outcome": kind, "why": said.partition("cannot be served: ")[2] or said.rpartition(": ")[2]}
    except Exception as error:
        return {"outcome": "not built", "why": f"{type(error).__name__}: {error}".splitlines()[0]}
    right = 0
    for arm in ARMS:
        try:
            engine = run(model, asked, *arm, max_num_seqs=3, options={"scheduler.max_num_batched_tokens": 7})
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return {
                "outcome": "failed",
                "why": f"{'+'.join(arm)}: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})",
            }
        right += sum(tuple(s.output_ids) == s.request.output_ids for s in engine.sequences)
    different = len({token for request in asked for token in request.output_ids or ()})
    total = len(asked) * len(ARMS)
    prepared = {key: num for key, num in (model.prepared or {}).items() if num}
    return {"outcome": "exact" if right == total else "wrong", "why": f"{right} of {total}", "prepared": prepared,
            "unprepared": model.unprepared, "different": different, "class": type(model.hf).__name__}  # fmt: skip


def _answer(name: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    pipe.send(tried(name))


def isolated(name: str) -> dict[str, Any]:
    """In a process of its own, forked after everything is imported."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(name, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(LIMIT_S) else {"outcome": "failed", "why": f"took more than {LIMIT_S} s"}
    except EOFError:
        child.join()
        return {"outcome": "failed", "why": f"its process died ({child.exitcode})"}
    finally:
        child.kill()
        child.join()


def names() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def page(found: dict[str, dict[str, Any]]) -> str:
    counts = Counter(one["outcome"] for one in found.values())
    lines = [
        "# Models",
        "",
        f"Every decoder architecture of transformers {version('transformers')} as a tiny random model in float32, through the arms",
        f"{', '.join('`' + '+'.join(arm) + '`' for arm in ARMS)}. Written by `make models`.",
        "",
        ", ".join(f"{num} {outcome}" for outcome, num in counts.most_common()) + ".",
        "",
        "*Exact*: all requests of all arms have the tokens of the model's own greedy generation, one prompt at a time. *Refused*: the",
        "model is refused by name when it is loaded, with the reason. *Not built*: transformers could not make a tiny model of this type.",
        "*Prepared* says which of its layers run on our own kernels ([prepared layers](model.md)).",
        "",
        "| architecture | outcome | prepared, or why not |",
        "|:--|:--|:--|",
    ]
    for name, one in found.items():
        detail = one["why"] if one["outcome"] != "exact" else ", ".join(one["prepared"]) or one.get("unprepared") or "nothing"
        lines.append(f"| `{name}` | {one['outcome']} | {str(detail).replace('|', '/').replace(chr(10), ' ')[:200]} |")
    return "\n".join(lines) + "\n"


def walk(chosen: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in chosen:
        yield name, isolated(name)


def main() -> int:
    found = {}
    for name, one in walk(sys.argv[1:] or names()):
        print(f"{name:28} {one['outcome']:10} {one['why'][:150]}", flush=True)
        found[name] = one
    if not sys.argv[1:]:
        PAGE.write_text(page(found))
    print(dict(Counter(one["outcome"] for one in found.values())))
    return 1 if any(one["outcome"] in ("wrong", "failed") for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
