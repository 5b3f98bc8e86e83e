"""What a run says of the machine, the code and the threads that it had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cbbench.errors import UserError
from cbbench.machine import device, fingerprint


def test_cpus_of_one_name_are_told_apart_by_model_vectors_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        "model name": "AMD EPYC",
        "cpu family": "25",
        "model": "17",
        "stepping": "1",
        "flags": "fpu avx2 avx512f",
    }
    text = "".join(f"{name}\t: {value}\n" for name, value in facts.items()) + "\n"
    monkeypatch.setattr(fingerprint.Path, "read_text", lambda self: text)
    monkeypatch.setattr(fingerprint, "last_cache", lambda: "32768K")
    assert fingerprint.cpu_details() == {"cpu_model": "25/17/1", "vector": "avx2 avx512f", "cache": "32768K"}
    monkeypatch.setattr(fingerprint.Path, "read_text", lambda self: text.replace(" avx512f", ""))
    assert fingerprint.cpu_details()["vector"] == "avx2"


def test_a_machine_that_tells_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: object) -> str:
        raise OSError

    monkeypatch.setattr(fingerprint.Path, "read_text", nothing)
    monkeypatch.setattr(fingerprint, "last_cache", lambda: None)
    assert fingerprint.cpu_details() == {"cpu_model": None, "vector": None, "cache": None}


def test_the_last_cache_is_that_of_the_highest_level(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "32K", "512K", "32768K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert fingerprint.last_cache(tmp_path) == "32768K"
    assert fingerprint.last_cache(tmp_path / "nowhere") is None


def test_the_code_s_commit_is_known_in_a_checkout() -> None:
    found = fingerprint.code()
    assert found.keys() == {"commit", "dirty"}
    assert found["commit"] is None or (len(found["commit"]) == 40 and found["dirty"] in (True, False))


def test_threads_are_as_they_are() -> None:
    assert fingerprint.threading()["torch"] == torch.get_num_threads()


def test_more_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda pid: {0, 1})
    assert device.check_threads(2) == 2
    with pytest.raises(UserError, match="--threads 3: this machine has 2 cores"):
        device.check_threads(3)
