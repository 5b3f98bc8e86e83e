"""Where a model comes from: embedded, hub, directory, GGUF, or random weights of a published shape."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from cbbench.errors import UserError
from cbbench.kernels.availability import missing
from cbbench.kvcache.base import KVSpec
from cbbench.machine.malloc import keep_freed_memory
from cbbench.model import gguf, self_test
from cbbench.model.model import Model, vocabulary
from cbbench.model.not_found import check_place, near, not_loaded
from cbbench.workload.rows import Vocabulary

EMBEDDED = "smollm2-135m"
RANDOM = "random:"
SHAPES = Path(__file__).parent / "shapes"  # published configs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NO_SHAPE = "not a configuration of a model that generates text"
HINT = (
    f"Use {EMBEDDED} (embedded), a directory with config.json and safetensors, a .gguf file, {RANDOM}<config.json>, "
    "or download the hub model first where the hub can be reached"
)


def load(
    name: str, dtype: str = "float32", device: str = "cpu", base_dir: Path | None = None, trust_remote_code: bool = False,
    prepare: bool = True,
) -> Model:  # fmt: skip
    """`smollm2-135m` (embedded), a hub id, a directory, a .gguf file, or `random:<config.json>[@SEED]`.

    Relative paths count from `base_dir`. Safetensors only. `prepare`: see `prepare_layers`; what is to be the truth for others
    is asked of the model before. Raises UserError with what to do when there is no such model, and for one that cannot be served.
    """
    _quiet()
    base_dir = base_dir or Path.cwd()
    if name.startswith(RANDOM):
        shape, tokenizer = name.removeprefix(RANDOM), None

        def read() -> PreTrainedModel:
            return _random(shape, DTYPES[dtype], base_dir).to(device)
    else:
        source, options = _source(name, base_dir), {"trust_remote_code": trust_remote_code}

        def read() -> PreTrainedModel:
            return _pretrained(name, base_dir, source, DTYPES[dtype], options).to(device)

        tokenizer = _tokenizer(source, options)
    model = _wrap(name, read(), tokenizer)
    model.read_again = read
    if prepare:
        prepare_layers(model)
    return model


def prepare_layers(model: Model) -> None:
    """Fuses and packs the model's layers in place, where what replaces them computes the same. The whole is then tried as it is
    served, against what the model answered when it was loaded; where that differs the model is read again and stays as it is."""
    from cbbench.model.fused_layers import fuse, kernels_take

    if model.device.type == "cpu" and model.dtype is torch.float32 and (why := missing()):
        model.unprepared = why
        return
    try:
        model.prepared = fuse(model.hf)
        if kernels_take(model.hf.get_input_embeddings().weight):
            from cbbench.model.decoder_layers import fuse_decoder_layers

            model.prepared["layers"] = fuse_decoder_layers(model.hf)
        off = self_test.differs(model.hf, model.spec, model.tried)
        reason = None if off is None else f"prepared layers give logits that are off by {off:.2g} of the largest"
    except Exception as error:  # foreign code that looks into a layer which is no longer there
        reason = f"it does not run on prepared layers ({type(error).__name__}: {error})"
    if reason is not None:
        assert model.read_again is not None
        model.hf, model.prepared, model.unprepared = _neutral(model.read_again()), None, reason
    elif model.device.type == "cpu":
        keep_freed_memory()


def _pretrained(name: str, base_dir: Path, source: str, dtype: torch.dtype, options: dict[str, Any]) -> PreTrainedModel:
    try:
        _refuse_encoder_decoder(AutoConfig.from_pretrained(source, **options))
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True, **options)
    except UserError:
        raise
    except Exception as error:  # whatever a foreign file or an unreachable hub raises
        raise not_loaded(name, base_dir, _known(), error, HINT) from error


@dataclass(frozen=True)
class Sketch:
    """What is known of a model without its weights."""

    name: str
    spec: KVSpec
    max_positions: int | None
    vocabulary: Vocabulary


def sketch(name: str, dtype: str = "float32", base_dir: Path | None = None, trust_remote_code: bool = False) -> Sketch:
    """The same names as `load`, in a second: configuration and tokenizer alone. Raises UserError."""
    _quiet()
    base_dir = base_dir or Path.cwd()
    options = {"trust_remote_code": trust_remote_code}
    if name.startswith(RANDOM):
        config, tokenizer = _shape(name.removeprefix(RANDOM), base_dir)[0], None
    else:
        source = _source(name, base_dir)
        try:
            config = AutoConfig.from_pretrained(source, **options)
        except Exception as error:  # whatever a foreign file or an unreachable hub raises
            raise not_loaded(name, base_dir, _known(), error, HINT) from error
        tokenizer = _tokenizer(source, options)
    text, eos = config.get_text_config(), getattr(config, "eos_token_id", None)
    if getattr(text, "kv_lora_rank", None):
        raise UserError(f"model {name!r} cannot be served: it keeps latent states (kv_lora_rank), not keys and values")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    spec = KVSpec(text.num_hidden_layers, heads, head_dim, DTYPES[dtype].itemsize)
    eos_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
    return Sketch(name, spec, getattr(text, "max_position_embeddings", None), vocabulary(config, tokenizer, eos_ids))


def _quiet() -> None:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or every retry at an unreachable hub is a line
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def relocated(name: str, old_dir: Path, new_dir: Path) -> str:
    """The same model for someone who counts relative paths from another directory."""
    old_dir, new_dir = old_dir.resolve(), new_dir.resolve()  # `..` leads from where a link points
    prefix = RANDOM if name.startswith(RANDOM) else ""
    path, at, seed = name.removeprefix(prefix).partition("@") if prefix else (name, "", "")
    if Path(path).is_absolute() or not (old_dir / path).exists() or (SHAPES / f"{path}.json").is_file():
        return name
    return prefix + os.path.relpath(old_dir / path, new_dir) + at + seed


def _source(name: str, base_dir: Path) -> str:
    """What transformers can open."""
    if name == EMBEDDED:
        return str(gguf.converted(gguf.embedded()))
    if name.endswith(".gguf"):
        if not (base_dir / name).is_file():
            raise UserError(f"model {name}: no such file{near(name, base_dir, _known())}")
        return str(gguf.converted(base_dir / name))
    if name == "none":
        raise UserError("model none: computes nothing; this needs a model")
    check_place(name, base_dir, _known())
    path = base_dir / Path(name).expanduser()
    return str(path) if path.is_dir() else name


def _known() -> list[str]:
    """What a name may have been meant for."""
    return [EMBEDDED, *(f"{RANDOM}{path.stem}" for path in sorted(SHAPES.glob("*.json")))]


def _shape(source: str, base_dir: Path) -> tuple[Any, int]:
    """The configuration behind `random:`, checked, and the seed."""
    path_text, _, seed = source.partition("@")
    shipped = SHAPES / f"{path_text}.json"
    path = shipped if shipped.is_file() else base_dir / path_text
    if seed and not seed.isdigit():
        raise UserError(f"model {RANDOM}{source}: the seed must be a whole number, not {seed!r}")
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in SHAPES.glob("*.json")))
        raise UserError(f"model {RANDOM}{source}: no file {path}; shipped shapes: {names}")
    try:
        config = AutoConfig.for_model(**json.loads(path.read_text()))
        _refuse_encoder_decoder(config)
        return config, int(seed or 0)
    except UserError:
        raise
    except Exception as error:  # transformers checks a configuration in many places, each in its own way
        raise UserError(f"{path}: {NO_SHAPE}: {_first_line(error)}") from error


def _random(source: str, dtype: torch.dtype, base_dir: Path) -> PreTrainedModel:
    config, seed = _shape(source, base_dir)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:
        raise UserError(f"{source}: {NO_SHAPE}: {_first_line(error)}") from error


def _refuse_encoder_decoder(config: Any) -> None:
    if config.is_encoder_decoder:
        name = (config.architectures or [config.model_type])[0]
        raise UserError(f"{name} cannot be served: it is an encoder-decoder; cbbench runs decoder-only models")


def _tokenizer(source: str, options: dict[str, Any]) -> Any | None:
    """None where the model comes without one: prompts must then be token ids."""
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError):
        return None


def _neutral(hf: PreTrainedModel) -> PreTrainedModel:
    hf.generation_config = GenerationConfig()
    return hf.eval()


def _wrap(name: str, hf: PreTrainedModel, tokenizer: Any | None) -> Model:
    """Reads the end-of-sequence ids as `generate` would, then makes the generation config neutral for both sides."""
    given = hf.generation_config or GenerationConfig()
    eos = given.eos_token_id if given.eos_token_id is not None else getattr(hf.config, "eos_token_id", None)
    eos_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
    harmless = ("_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
    neutralised = {key: value for key, value in given.to_diff_dict().items() if key not in harmless}
    return Model(name, _neutral(hf), tokenizer, eos_ids, neutralised)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
