"""A small part of `make models`: architectures that were once served wrong, or crashed, and one of each kind of refusal."""

from __future__ import annotations

import pytest

from tests.model import zoo

EXACT = {
    "exaone4": "a layer that passes sliding_window=None means it, although it has the attribute",
    "glm4": "only a part of each head is turned to its position",
    "afmoe": "a layer takes a view of what attention gives",
    "apertus": "a weight without dimensions",
    "hunyuan_v1_dense": "norms of heads behind the rotation",
    "granite": "multipliers that stand in the configuration alone",
}
REFUSED = {
    "llama4_text": "off by",  # chunks that stand in the mask alone
    "doge": "a mask of its own",
    "inkling_text": "position_bias",
    "bart": "off by",  # takes no notice of position ids
    "moshi": "its own generation",
    "gemma2": "softcap",
    "mamba": "0 of its 2 layers",
}


@pytest.mark.parametrize("name", EXACT)
def test_what_was_served_wrong_is_exact(name: str) -> None:
    found = zoo.tried(name)
    assert (found["outcome"], found["why"]) == ("exact", "15 of 15"), found
    assert found["different"] > 8, "not one token over and over"


@pytest.mark.parametrize("name", REFUSED)
def test_what_asks_for_more_is_refused_by_name(name: str) -> None:
    found = zoo.tried(name)
    assert found["outcome"] == "refused" and REFUSED[name] in found["why"], found


def test_a_model_that_does_not_run_on_prepared_layers_runs_as_it_comes() -> None:
    found = zoo.tried("hunyuan_v1_moe")
    assert found["outcome"] == "exact" and not found["prepared"] and "no attribute 'weight'" in found["unprepared"]


def test_the_page_has_every_architecture_and_nothing_wrong() -> None:
    """Not? `make models`."""
    text = zoo.PAGE.read_text()
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    outcomes = {line[0].strip("| `"): line[1] for line in lines}
    assert {*outcomes.values()} == {"exact", "refused", "not built"} and len(outcomes) > 150
    for name in (*EXACT, *REFUSED):
        assert outcomes[name] == ("exact" if name in EXACT else "refused"), name
