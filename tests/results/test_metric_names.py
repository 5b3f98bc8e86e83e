"""One metric, many spellings: every option that takes one takes all of them."""

from __future__ import annotations

import pytest

from cbbench.compare.gate import parse_margins, parse_rule
from cbbench.compare.slo import parse_slos
from cbbench.errors import UserError
from cbbench.results.columns import COLUMNS
from cbbench.results.compared_metrics import ALIASES, METRICS
from cbbench.results.metric_names import find_metric, metric_key
from tests.support.commands import refusal

TTFT_P90 = ("TTFT p90", "ttft_s_p90", "ttft_p90", "ttft p90", "TTFT_P90")


@pytest.mark.parametrize("name", TTFT_P90)
def test_rules_margins_objectives_and_columns_take_every_name_of_a_metric(name: str) -> None:
    assert metric_key("--columns", name) == "ttft_s_p90"
    assert parse_rule(f"{name}:5%@static*").metric == "ttft_s_p90"
    assert parse_margins([f"{name}=5%"]) == {"ttft_s_p90": 0.05}
    (slo,) = parse_slos([f"{name}=2s"])
    assert (slo.measure, slo.point, slo.bound_s) == ("ttft", "p90", 2.0)


def test_a_name_without_a_point_is_the_median() -> None:
    assert [find_metric(name) for name in ("ttft", "TTFT", "tpot", "e2e_s")] == ["ttft_s_p50", "ttft_s_p50", "tpot_s_p50", "e2e_s_p50"]
    assert [find_metric(name) for name in ("throughput", "output tok/s", "tok/s")] == ["output_tok_per_s"] * 3


def test_what_tables_and_verdicts_print_is_taken() -> None:
    assert {key: find_metric(column.title) for key, column in COLUMNS.items()} == {key: key for key in COLUMNS}
    judged = METRICS.keys() - {"output_digest"}  # its title, output tokens, is the name of a count
    assert {key: find_metric(METRICS[key].title) for key in judged} == {key: key for key in judged}
    assert {name: find_metric(name) for name in ALIASES} == ALIASES


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert refusal(lambda: metric_key("--columns", "tttf p90")) == "--columns tttf p90: no such metric; did you mean ttft_s_p90?"
    with pytest.raises(UserError, match="cbbench list metrics"):
        metric_key("--columns", "xyzzy")
