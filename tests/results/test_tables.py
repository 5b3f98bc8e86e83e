"""What a person reads: tables that fit the terminal, values that say their unit, and nothing invented."""

from __future__ import annotations

import pytest
from rich.console import Console

from cbbench.results.columns import Column
from cbbench.results.renderers import Grid, as_markdown, as_rich
from cbbench.results.tables import TableRow, grids
from cbbench.results.units import number, percent, seconds

NAMES = ["static+padded+preallocated", "continuous+varlen+paged"]


def rows(**values: list[float | None]) -> list[TableRow]:
    """Two arms with these metrics; all others do not exist."""
    return [TableRow(arm, "run", "2/2 exact", {key: pair[i] for key, pair in values.items()}) for i, arm in enumerate(NAMES)]


def printed(grid: Grid, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(as_rich(grid, width))
    return capture.get().splitlines()


LATENCY = {f"{name}_{key}": [0.5, 1.5] for name in ("ttft_s", "tpot_s", "e2e_s") for key in ("p50", "p90")}


def test_a_table_stands_upright_where_it_fits() -> None:
    (grid,) = [grid for grid in grids(rows(**LATENCY)) if grid.title == "Latency"]
    lines = printed(grid, 160)
    assert any(all(word in line for word in ("TTFT p50", "E2E p90", "arm")) for line in lines)
    assert any(line.strip().startswith(NAMES[0]) and "500 ms" in line for line in lines)


def test_on_a_narrow_terminal_it_lies_on_its_side_with_no_word_broken() -> None:
    (grid,) = [grid for grid in grids(rows(**LATENCY)) if grid.title == "Latency"]
    lines = printed(grid, 80)
    assert max(map(len, lines)) <= 80
    assert any(all(name in line for name in NAMES) for line in lines)
    assert [line.split() for line in lines if "TTFT p50" in line] == [["TTFT", "p50", "500", "ms", "1.50", "s"]]


def test_a_column_that_does_not_vary_stands_below_and_one_without_values_nowhere() -> None:
    made = {
        grid.title: grid
        for grid in grids(
            rows(lateness_s_max=[7.0, 7.0], total_tok_per_s=[7.0, 7.0], output_tok_per_s=[10.0, 30.0], duration_s=[None, None])
        )
    }
    throughput = made["Throughput"]
    assert throughput.headers == ["arm", "requests", "output tok/s"]
    assert throughput.note == "same in every row: total tok/s 7"
    assert "total tok/s 7" in as_markdown("title", [throughput])


def test_a_single_row_keeps_all_its_columns() -> None:
    alone = grids(rows(steps=[7.0, 7.0])[:1])[0]
    assert "steps" in alone.headers and alone.note == ""
    assert alone.lines[0].count("-") == len(alone.headers) - 3, "what does not exist is a dash"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(3), "3"),
        (number(22.97), "23.0"),
        (number(1234.5), "1,234"),
        (number(560.0), "560"),
        (percent(0.1234), "12.3 %"),
        (seconds(0.0715), "72 ms"),
        (seconds(16.86), "16.86 s"),
        (Column("x", "x").text(None), "-"),
    ],
)
def test_numbers_are_short_and_carry_their_unit(text: str, expected: str) -> None:
    assert text == expected
