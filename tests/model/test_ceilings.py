"""A machine's rates are the best ever seen on it: a measurement beside other work does not lower a ceiling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench.model import ceilings

HERE = {"cpu": "one", "threads": 1}


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Small work, and a clock that says how long it took."""
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path))
    ones, randn = torch.ones, torch.randn
    monkeypatch.setattr(torch, "ones", lambda *_, **how: ones(64, **how))
    monkeypatch.setattr(torch, "randn", lambda *_, **how: randn(4, 4, **how))

    def set_s(seconds: float) -> None:
        monkeypatch.setattr(ceilings, "RealClock", lambda: type("Clock", (), {"now": lambda self: seconds})())

    yield set_s


def test_the_best_rate_ever_seen_stays_and_belongs_to_its_machine(takes: Any) -> None:
    assert ceilings.stored(HERE) is None
    takes(0.5)
    first = ceilings.measure(HERE, "cpu")
    assert first == {"bytes_per_s": 64 * 4 / 0.5, "flop_per_s": 2 * 2048**3 / 0.5} == ceilings.stored(HERE)
    takes(2.0)
    assert ceilings.measure(HERE, "cpu") == first == ceilings.stored(HERE), "beside other work"
    assert ceilings.measure(HERE | {"threads": 2}, "cpu")["bytes_per_s"] == 64 * 4 / 2.0, "another number of threads is another machine"
    takes(0.25)
    better = ceilings.measure(HERE, "cpu")
    assert better == {name: 2 * rate for name, rate in first.items()} == ceilings.stored(HERE)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bytes_per_s": 1}', '{"bytes_per_s": null, "flop_per_s": 1}'])
def test_a_damaged_record_is_none_and_is_measured_anew(takes: Any, tmp_path: Path, text: str) -> None:
    takes(0.5)
    measured = ceilings.measure(HERE, "cpu")
    (place,) = (tmp_path / "machines").glob("*.json")
    place.write_text(text)
    assert ceilings.stored(HERE) is None
    takes(1.0)
    assert ceilings.measure(HERE, "cpu") == {name: rate / 2 for name, rate in measured.items()} == ceilings.stored(HERE)
    assert [*(tmp_path / "machines").iterdir()] == [place]
