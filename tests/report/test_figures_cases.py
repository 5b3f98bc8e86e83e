"""Pictures of runs that lack something: peers, refused requests, no model; and of what must be told apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import pytest

from cbbench.errors import UserError
from cbbench.report.figure import bars as figure_bars
from cbbench.report.figure import kinds as figures
from cbbench.report.figure import latency as figure_latency
from cbbench.report.figure import memory as figure_memory
from cbbench.report.figure import requests as figure_requests
from cbbench.report.figure import slots as figure_slots
from cbbench.report.figure.style import RC
from cbbench.results.store import Cell
from cbbench.results.timeline import Kind
from tests.support.engines import run_virtual
from tests.support.figures import ARMS, as_peer, engine_recorded, recorded, texts
from tests.support.virtual_runs import asked


def test_titles_say_workload_model_and_arm() -> None:
    for kind in figures.DRAWN:
        said = texts(figures.figure(recorded("tutorial", *ARMS), kind))
        assert "tutorial on smollm2-135m in float32" in said and all(arm in said for arm in ARMS), kind


def test_an_id_with_dollars_is_no_formula() -> None:
    found = engine_recorded(run_virtual([replace(r, id=f"cost $x_{i}$") for i, r in enumerate(asked((3, 2), (3, 2)))]))
    with mpl.rc_context(RC):
        drawn = figures.figure([found], "requests")
        drawn.canvas.draw()
        assert "cost $x_1$" in texts(drawn) and not any(t.get_parse_math() for t in drawn.findobj(mpl.text.Text))


@pytest.mark.parametrize("kind", ["slots", "memory", "waste"])
def test_a_peer_without_steps_is_left_out_and_the_title_says_so(kind: str) -> None:
    ours = recorded("tutorial", *ARMS)
    assert "left out, no step records: hf-generate" in texts(figures.figure([*ours, as_peer(ours[0])], kind))
    with pytest.raises(UserError, match=f"plot {kind} is made of step records, and hf-generate kept none"):
        figures.figure([as_peer(ours[0])], kind)


@pytest.mark.parametrize("kind", ["requests", "latency", "throughput"])
def test_a_peer_that_tells_no_times_is_drawn_as_far_as_it_goes(kind: str) -> None:
    ours = recorded("tutorial", *ARMS)
    peer = as_peer(ours[0])
    peer.run.cells.append(Cell(peer.arm, 1, peer.metrics))
    drawn = figures.figure([ours[1], peer], kind)
    drawn.canvas.draw()
    assert "hf-generate" in texts(drawn)
    figures.figure([peer], kind).canvas.draw()


def test_refused_and_cancelled_requests_are_named_in_their_rows() -> None:
    found = engine_recorded(run_virtual(asked((3, 4), (3, 2)), max_num_seqs=2))
    found.requests[1] |= {"state": "refused", "token_times_s": [], "first_scheduled_s": None, "output_ids": []}
    assert " refused" in texts(figures.figure([found], "requests"))


def test_a_run_of_the_virtual_clock_is_drawn_in_every_kind() -> None:
    found = engine_recorded(run_virtual(asked((3, 4), (3, 2)), max_num_seqs=2))
    found.run.cells.append(Cell(found.arm, 1, found.metrics))
    for kind in figures.DRAWN:
        drawn = figures.figure([found], kind)
        drawn.canvas.draw()
        assert "w on a virtual clock" in texts(drawn) and "MiB" not in texts(drawn)


def luminance(colour: Any) -> float:
    red, green, blue, *_ = mpl.colors.to_rgba(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_shares_a_picture_differs_in_grey_or_in_hatch() -> None:
    slots = [(luminance(figure_slots.colour(kind, "#777777")), figure_slots.HATCH.get(kind)) for kind in Kind]
    others = [
        [(luminance(s["facecolor"]), s.get("hatch")) for s in styles.values()] for styles in (figure_memory.STYLES, figure_requests.STYLES)
    ]
    bars = [[(luminance(s["facecolor"]), s.get("hatch")) for _, s in parts.values()] for parts in figure_bars.PANELS.values()]
    for shades in [slots, *others, *bars]:
        for one, other in ((a, b) for i, a in enumerate(shades) for b in shades[i + 1 :]):
            assert one[1] != other[1] or abs(one[0] - other[0]) > 0.05, shades
    assert all(a != b for a, b in pairwise(figure_latency.LINES))
