"""Lengths drawn from a distribution as one writes it, and histograms that hold every value."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.report.histogram import bar, histogram
from cbbench.workload.distributions import FORMS, Fixed, Lognormal, Uniform, parse
from tests.support.commands import refusal

law = settings(max_examples=200, deadline=None, derandomize=True)
FLAG = "--prompt-tokens"


def draw(text: str, num: int = 20_000, seed: int = 0) -> list[int]:
    drawn = parse(FLAG, text).draw(np.random.default_rng(seed), num)
    assert drawn.dtype == np.int64 and drawn.shape == (num,)
    return drawn.tolist()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("128", Fixed(tokens=128)),
        ("fixed:tokens=9", Fixed(tokens=9)),
        ("uniform:min=16,max=512", Uniform(min=16, max=512)),
        ("uniform: max=512, min=16,", Uniform(min=16, max=512)),
        ("lognormal:mean=300,cv=1", Lognormal(mean=300, cv=1)),
        ("lognormal:mean=300.5,cv=0.25,min=4,max=2048", Lognormal(mean=300.5, cv=0.25, min=4, max=2048)),
    ],
)
def test_the_forms_that_are_understood(text: str, made: object) -> None:
    assert parse(FLAG, text) == made


@pytest.mark.parametrize("text", ["gauss:mean=3", "uniform:16,512", "normal:", "uniform:min=16,max", "uniform:min={", ":", "a:b:c"])
def test_other_forms_are_refused_with_those_that_are_understood(text: str) -> None:
    assert refusal(lambda: parse(FLAG, text)) == f"{FLAG} {text}: should be {FORMS}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "tokens: should be greater than or equal to 1, got 0"),
        ("-5", "tokens: should be greater than or equal to 1, got -5"),
        ("2.5", "tokens: should be a valid integer, got 2.5"),
        ("many", "tokens: should be a valid integer, got 'many'"),
        ("true", "tokens: should be a valid integer, got True"),
        ("uniform:min=9,max=8", "min=9 is more than max=8"),
        ("uniform:min=0,max=8", "min: should be greater than or equal to 1, got 0"),
        ("uniform:min=1", "max: Field required"),
        ("uniform:min=1,max=2,cv=1", "unknown key 'cv'; known keys: max, min"),
        ("uniform:min=1,max=2,maxx=2", "unknown key 'maxx'; did you mean max?"),
        ("lognormal:mean=0,cv=1", "mean: should be greater than 0, got 0"),
        ("lognormal:mean=5,cv=-1", "cv: should be greater than 0, got -1"),
        ("lognormal:mean=.inf,cv=1", "mean: should be a finite number, got inf"),
        ("lognormal:mean=5", "cv: Field required"),
        ("lognormal:mean=5,cv=1,max=0", "max: should be greater than or equal to 1, got 0"),
        ("lognormal:mean=5,cv=1,min=9,max=8", "min=9 is more than max=8"),
    ],
)
def test_a_wrong_value_is_refused_by_name(text: str, said: str) -> None:
    message = refusal(lambda: parse(FLAG, text))
    assert message.startswith(f"{FLAG} {text}: ") and said in message


def test_a_number_is_that_length_always() -> None:
    assert set(draw("7", 50)) == {7}


def test_a_uniform_draw_has_both_ends_and_all_between_equally_often() -> None:
    values, counts = np.unique(draw("uniform:min=3,max=12"), return_counts=True)
    assert values.tolist() == list(range(3, 13)) and counts.min() > 1850 and counts.max() < 2150
    assert set(draw("uniform:min=5,max=5", 9)) == {5}


@pytest.mark.parametrize(("mean", "cv"), [(300, 1.0), (1000, 0.25), (2000, 2.0)])
def test_a_lognormal_draw_has_the_mean_and_the_cv_of_the_lengths_themselves(mean: int, cv: float) -> None:
    drawn = np.array(draw(f"lognormal:mean={mean},cv={cv}", 200_000))
    assert drawn.mean() == pytest.approx(mean, rel=0.02) and drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.06)
    assert drawn.min() >= 1 and np.median(drawn) == pytest.approx(mean / (1 + cv**2) ** 0.5, rel=0.02)


def test_what_falls_outside_min_and_max_is_set_to_them() -> None:
    free, cut = draw("lognormal:mean=300,cv=1"), draw("lognormal:mean=300,cv=1,min=100,max=500")
    assert cut == np.clip(free, 100, 500).tolist() and {100, 500} < set(cut)
    assert min(draw("lognormal:mean=0.01,cv=3")) == 1
    assert max(draw("lognormal:mean=1000000000000000,cv=3")) == 2**31, "no length overflows"


@pytest.mark.parametrize("text", ["uniform:min=1,max=99", "lognormal:mean=30,cv=1"])
def test_the_seed_decides(text: str) -> None:
    assert draw(text, 50, 1) == draw(text, 50, 1) != draw(text, 50, 2)


def counts(lines: list[str]) -> list[int]:
    return [int(line.split()[-1].replace(",", "")) for line in lines]


def starts(lines: list[str]) -> list[int]:
    return [int(line.split()[0].replace(",", "")) for line in lines]


@law
@given(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=80))
def test_a_histogram_of_lengths_holds_every_value_in_few_short_lines(values: list[int]) -> None:
    lines = histogram(values)
    assert sum(counts(lines)) == len(values) and 1 <= len(lines) <= 10 and all(len(line) <= 60 for line in lines)
    begins = starts(lines)
    assert begins == sorted(set(begins)) and begins[0] == min(values), "bins begin at whole numbers, each at another"
    ends = [*begins[1:], max(values) + 1]
    assert counts(lines) == [sum(low <= value < high for value in values) for low, high in zip(begins, ends, strict=True)]


@law
@given(st.lists(st.floats(0, 1e7, allow_subnormal=False), min_size=1, max_size=80))
def test_a_histogram_of_times_holds_every_value_too(values: list[float]) -> None:
    lines = histogram(values)
    assert sum(counts(lines)) == len(values) and len(lines) <= 10 and all(len(line) <= 60 for line in lines)


def test_histograms_by_hand() -> None:
    assert histogram([]) == []
    assert histogram([5]) == [f"5 {'█' * 40} 1"] and histogram([5.5] * 1200) == [f"6 {'█' * 40} 1,200"]
    assert histogram([1, 2, 2, 4], num_bins=3, width=4) == ["1 ██   1", "2 ████ 2", "3 ██   1"]
    lines = histogram([1] * 8 + [10] * 4 + [100] + [1000], num_bins=3, width=8)
    assert [re.sub(" +", " ", line.strip()) for line in lines] == ["1 ████████ 8", "10 ████ 4", "100 ██ 2"], "a decade each"


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3], [0.0, 0.5, 4.25], [1000.25, 1000.75]])
def test_bins_of_fractions_are_told_apart_by_their_names(values: list[float]) -> None:
    names = [line.split()[0] for line in histogram(values)]
    assert len(set(names)) == len(names)


def test_a_bar_is_exact_to_an_eighth_and_never_nothing_for_something() -> None:
    assert [bar(share, 2) for share in (0, 1e-9, 0.5, 0.75, 1)] == ["", "▏", "█", "█▌", "██"]
