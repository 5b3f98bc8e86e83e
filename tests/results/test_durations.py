"""Times as a person says them."""

from __future__ import annotations

import pytest

from cbbench.results.durations import log_ticks, seconds, tick_text, ticks

SAID = {
    0.0: "0 ms", 4e-7: "< 0.001 ms",
    0.00042: "0.42 ms", 0.0014: "1.4 ms", 0.002: "2 ms", 0.0998: "100 ms", 0.34: "340 ms", 0.9994: "999 ms",
    0.9996: "1.00 s", 12.345: "12.35 s", 59.999: "60.00 s", 119.99: "119.99 s", 120.0: "2 min", 432.4: "7 min 12 s", 3599.4: "59 min 59 s",
    3599.7: "1 h", 25_920.0: "7 h 12 min", 86_399.0: "1 d", 273_600.0: "3 d 4 h", 1e9: "11,574 d 2 h", -0.5: "-500 ms",
}  # fmt: skip


@pytest.mark.parametrize(("value", "text"), SAID.items())
def test_a_time_is_said_in_the_units_of_its_size(value: float, text: str) -> None:
    assert seconds(value) == text


def test_ticks_are_round_times() -> None:
    def texts(end_s: float, most: int = 6) -> list[str]:
        return [tick_text(place) for place in ticks(end_s, most)]

    assert texts(0.05) == ["0", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms"]
    assert texts(1.7) == ["0", "500 ms", "1 s", "1.5 s"]
    assert texts(0.3, 3) == ["0", "100 ms", "200 ms", "300 ms"]
    assert texts(6) == ["0", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s"]
    assert texts(500) == ["0", "2 min", "4 min", "6 min", "8 min"]
    assert texts(25_000) == ["0", "2 h", "4 h", "6 h"]
    assert texts(5 * 86_400) == ["0", "1 d", "2 d", "3 d", "4 d", "5 d"]
    assert texts(100 * 86_400) == ["0", "20 d", "40 d", "60 d", "80 d", "100 d"]
    assert ticks(0.0) == [0.0] and ticks(700, 6, decimal=True) == [0, 200, 400, 600]


def test_ticks_of_a_wide_axis_reach_around_its_ends() -> None:
    assert [tick_text(place) for place in log_ticks(0.03, 9_000)] == ["10 ms", "100 ms", "1 s", "10 s", "60 s", "10 min", "1 h", "10 h"]
    assert log_ticks(2.0, 2e6)[-2:] == [864_000, 8_640_000]
