"""What the tables call an arm is what `run --arm` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbbench import plugins
from cbbench.runs.arm_names import parse_arm, peers_of
from cbbench.runs.config import Overrides, build_arms, build_peers
from cbbench.workload.file import read_workload
from tests.support.commands import refusal, write_workload
from tests.support.engines import ALL

OPTIONS = {
    "chunked": ["max_num_batched_tokens=128"], "static": ["max_wait_s=0.25"], "paged": ["block_size=32"],
    "preallocated": ["reserve=exact", "max_len=96", "placement=buddy"], "varlen": ["backend=cpu"],
}  # fmt: skip


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    return write_workload(tmp_path)


def test_every_label_names_its_own_arm(workload: Path) -> None:
    """All pairings, each with options that are not at their defaults where it has any."""
    read = read_workload(workload)
    seen = 0
    for names in ALL:
        sets = [f"{axis}.{option}" for axis, name in zip(plugins.AXES, names, strict=True) for option in OPTIONS.get(name, [])]
        for chosen in (sets, []):
            (arm,) = build_arms(read, Overrides(arms=["+".join(names)], sets=chosen))
            (again,) = build_arms(read, Overrides(arms=[arm.label]))
            assert again == arm and ("(" in arm.label) == bool(chosen)
            seen += bool(chosen)
    assert seen > 20


def test_a_strategy_of_ones_own_is_named_as_the_tables_print_it(workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_gentle.py").write_text(
        "from pydantic import Field\nfrom cbbench.schedulers.continuous import Continuous\nfrom cbbench.strategy import StrictOptions\n"
        "class Gentle(Continuous):\n    class Options(StrictOptions):\n        admissions: int = Field(1, ge=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    read = read_workload(workload)
    (arm,) = build_arms(read, Overrides({"scheduler": "own_gentle:Gentle"}, sets=["scheduler.admissions=2"]))
    assert arm.label == "own_gentle.Gentle(admissions=2)+varlen+paged"
    assert build_arms(read, Overrides(arms=[arm.label])) == [arm]


def test_a_label_of_another_system_is_a_peer_with_its_options() -> None:
    (peer,) = build_peers("hf-generate", [], [], 4)
    arms, peers, sets = peers_of(["static+padded+cat", peer.label, "vllm(enforce_eager=True)"])
    assert (arms, peers, sets) == (["static+padded+cat"], ["hf-generate", "vllm"], ["peer.enforce_eager=True"])
    assert build_peers(",".join(peers[:1]), [], [], 4) == [peer]


def test_what_is_no_arm_is_refused() -> None:
    for text in ("static+padded", "static+padded+cat+x", "static+padded+cat(", "static+padded+cat(x)"):
        assert refusal(lambda text=text: parse_arm(text)).startswith(f"--arm {text}: ")  # type: ignore[misc]
    assert "--against REV" in refusal(lambda: parse_arm("static+padded+cat@abc1234"))
