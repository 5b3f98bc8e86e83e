"""The real model: where it comes from, what it is, and one forward pass over a layout."""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from cbbench import gguf, seam
from cbbench.attention.base import Attention, ForwardPass
from cbbench.errors import UserError
from cbbench.kvcache.base import KVSpec, KVView

EMBEDDED = "smollm2-135m"
SHAPES = Path(__file__).parent / "shapes"  # published configs, for random weights of a real shape
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Model:
    """A loaded model. Reference tokens and every arm run on this one object."""

    name: str
    hf: PreTrainedModel
    tokenizer: Any | None
    eos_ids: frozenset[int]
    neutralised: dict[str, Any]  # what its generation_config asked for beside greedy; used by neither side
    spec: KVSpec = field(init=False)
    digest: str = field(init=False)  # of weights and the configuration that shapes its outputs

    def __post_init__(self) -> None:
        self.spec = seam.probe(self.hf)
        self.digest = digest(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.hf.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.hf.device
        return device

    @property
    def max_positions(self) -> int | None:
        return getattr(self.hf.config, "max_position_embeddings", None)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it stands, special tokens in it read as such."""
        assert self.tokenizer is not None
        return list(self.tokenizer(text).input_ids)

    def serving(self) -> AbstractContextManager[None]:
        """Inside, the layers call our attention; `forward` needs it."""
        return seam.serving(self.hf)

    @torch.inference_mode()
    def forward(self, forward_pass: ForwardPass, kv: KVView, attention: Attention) -> list[int]:
        """Runs one pass; returns the greedy next token of each row that samples, in row order."""
        rows = forward_pass.rows
        if forward_pass.width is None:
            ids = np.concatenate([row.sequence.tokens(row.start, row.stop) for row in rows])[None]
            positions = np.concatenate([np.arange(row.start, row.stop) for row in rows])[None]
            ends = np.cumsum([row.num_new for row in rows]) - 1
            keep = ends[[row.samples for row in rows]]
        else:
            ids = np.zeros((len(rows), forward_pass.width), np.int64)  # any valid id pads: it is never attended to
            positions = np.zeros_like(ids)
            for line, row in enumerate(rows):
                if row.num_new:
                    ids[line, -row.num_new :] = row.sequence.tokens(row.start, row.stop)
                    positions[line, -row.num_new :] = np.arange(row.start, row.stop)
            keep = np.array([forward_pass.width - 1])
        index = forward_pass.token_index
        step = seam.Step(forward_pass, kv, attention, None if index is None else torch.from_numpy(index).to(self.device))
        logits = self.hf(
            input_ids=torch.from_numpy(ids).to(self.device), position_ids=torch.from_numpy(positions).to(self.device),
            use_cache=False, logits_to_keep=torch.from_numpy(keep).to(self.device), cbbench=step,
        ).logits  # fmt: skip
        assert step.calls == self.spec.num_layers, f"{step.calls} attention calls in {self.spec.num_layers} layers"
        tokens: list[int] = logits.float().argmax(-1).flatten().tolist()
        if forward_pass.width is None:
            return tokens
        return [token for token, row in zip(tokens, rows, strict=True) if row.samples]


def load(name: str, dtype: str = "float32", device: str = "cpu", base_dir: Path | None = None, trust_remote_code: bool = False) -> Model:
    """`smollm2-135m` (embedded), a hub id, a directory, a .gguf file, or `random:<config.json>[@SEED]`.

    Relative paths count from `base_dir`. Raises UserError with what to do when there is no such model.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or every retry at an unreachable hub is a line
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    base_dir = base_dir or Path.cwd()
    if name.startswith("random:"):
        return _wrap(name, _random(name.removeprefix("random:"), DTYPES[dtype], base_dir).to(device), None)
    if name == EMBEDDED:
        source = str(gguf.converted(gguf.embedded()))
    elif name.endswith(".gguf"):
        if not (base_dir / name).is_file():
            raise UserError(f"model {name}: no such file")
        source = str(gguf.converted(base_dir / name))
    else:
        source = str(base_dir / name) if (base_dir / name).is_dir() else name
    try:
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        hf = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], use_safetensors=True, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"model {name!r} cannot be loaded: {_first_line(error)}. {HINT}") from error
    return _wrap(name, hf.to(device), _tokenizer(source, options))


HINT = (
    f"Use {EMBEDDED} (embedded), a directory with config.json and safetensors, a .gguf file, random:<config.json>, "
    "or download the hub model first where the hub can be reached"
)


def _tokenizer(source: str, options: dict[str, Any]) -> Any | None:
    """None where the model comes without one: prompts must then be token ids."""
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError):
        return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _wrap(name: str, hf: PreTrainedModel, tokenizer: Any | None) -> Model:
    """Reads the end-of-sequence ids as `generate` would, then makes the generation config neutral for both sides."""
    given = hf.generation_config or GenerationConfig()
    eos = given.eos_token_id if given.eos_token_id is not None else getattr(hf.config, "eos_token_id", None)
    eos_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
    harmless = ("_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
    neutralised = {key: value for key, value in given.to_diff_dict().items() if key not in harmless}
    hf.generation_config = GenerationConfig()
    return Model(name, hf.eval(), tokenizer, eos_ids, neutralised)


def _random(source: str, dtype: torch.dtype, base_dir: Path) -> PreTrainedModel:
    path_text, _, seed = source.partition("@")
    shipped = SHAPES / f"{path_text}.json"
    path = shipped if shipped.is_file() else base_dir / path_text
    if seed and not seed.isdigit():
        raise UserError(f"model random:{source}: the seed must be a whole number, not {seed!r}")
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in SHAPES.glob("*.json")))
        raise UserError(f"model random:{source}: no file {path}; shipped shapes: {names}")
    try:
        config = AutoConfig.for_model(**json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a model configuration: {_first_line(error)}") from error
    with torch.random.fork_rng():
        torch.manual_seed(int(seed or 0))
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


SHAPING = (
    "model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "activation_function", "rms_norm_eps",
    "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "layer_types",
)  # fmt: skip


def digest(hf: PreTrainedModel) -> str:
    """SHA-256 over every weight's name, type, shape and CRC-32, and what the config says beyond shapes."""
    config = hf.config.to_dict()
    lines = [f"{key}={config.get(key)!r}" for key in SHAPING]
    for name, weight in sorted(hf.state_dict().items()):
        raw = weight.detach().cpu().contiguous().view(torch.uint8).numpy()
        lines.append(f"{name} {weight.dtype} {tuple(weight.shape)} {zlib.crc32(raw):08x}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
