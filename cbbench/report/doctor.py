"""`cbbench doctor`: this machine, what is installed, and which kernels can run here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import psutil
import torch

from cbbench import folders, plugins
from cbbench.errors import UserError
from cbbench.kernels.availability import missing
from cbbench.machine.device import choose_device, default_threads
from cbbench.machine.fingerprint import fingerprint, versions
from cbbench.model import ceilings, gguf
from cbbench.report.screen import print_pairs
from cbbench.results import tables
from cbbench.runs.config import why_not


def print_doctor() -> None:
    """`cbbench doctor`."""
    device = choose_device("auto")
    rows: list[tuple[str, Any]] = [(name, fact or "none") for name, fact in fingerprint(device, default_threads()).items()]
    measured = ceilings.measure(fingerprint(device, default_threads()), device)
    rows += [
        ("read bandwidth", f"{measured['bytes_per_s'] / 1e9:.1f} GB/s"),
        ("matrix rate", f"{measured['flop_per_s'] / 1e9:.0f} GFLOP/s"),
    ]
    rows += [("memory available", tables.size(psutil.virtual_memory().available)), ("device", device)]
    rows += [(name, found or "not installed") for name, found in versions().items()]
    rows += [("CUDA", torch.version.cuda or "not in this torch"), ("cache", folders.cache_dir())]
    try:
        rows.append(("embedded model", gguf.embedded().name))
    except UserError as error:
        rows.append(("embedded model", error))
    for dtype in ("float32", "bfloat16", "float16"):
        for axis in plugins.AXES:
            able = [name for name in plugins.names(axis) if why_not(axis, name, device, dtype) is None]
            rows.append((f"{axis} in {dtype}", ", ".join(able) or "none"))
    rows.append(("our CPU kernels", missing() or "can run here"))
    rows += [(f"{name} on {backend}", reason or "can run here") for name, backend, reason in _backends(device)]
    print_pairs("", [(name, str(value)) for name, value in rows])


def _backends(device: str) -> Iterator[tuple[str, str, str | None]]:
    """Each kernel that an attention can be told to use, and why it cannot run on this device in the dtype that suits it."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    for name in plugins.names("attn"):
        if why_not("attn", name, device, dtype):
            continue
        cls = plugins.find("attn", name)
        field = cls.Options.model_fields.get("backend")
        for backend in get_args(field.annotation) if field else ():
            yield name, backend, cls.cannot_run(device, dtype, cls.Options.model_validate({"backend": backend}))
