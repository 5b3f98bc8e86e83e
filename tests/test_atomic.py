"""What is written is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbbench.atomic import filled_once, replacing


def test_a_file_takes_its_place_when_it_is_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "kept.txt"
    place.write_text("before")
    with pytest.raises(RuntimeError), replacing(place) as half:
        half.write_text("a part")
        assert place.read_text() == "before"
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"] and place.read_text() == "before"
    with replacing(place) as half:
        half.write_text("after")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"] and place.read_text() == "after"


def test_a_folder_is_filled_once_and_a_failure_leaves_none(tmp_path: Path) -> None:
    place, calls = tmp_path / "deep" / "folder", []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "a").write_text("1")
        if len(calls) == 1:
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        filled_once(place, fill)
    assert [*place.parent.iterdir()] == []
    assert filled_once(place, fill) == filled_once(place, fill) == place
    assert len(calls) == 2 and [path.name for path in place.parent.iterdir()] == ["folder"]


def test_who_comes_second_takes_what_the_first_has_made(tmp_path: Path) -> None:
    place = tmp_path / "folder"

    def overtaken(folder: Path) -> None:
        (folder / "a").write_text("second")
        place.mkdir()
        (place / "a").write_text("first")

    assert filled_once(place, overtaken) == place
    assert (place / "a").read_text() == "first" and [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(OSError):
        filled_once(tmp_path / "other", lambda folder: folder.rmdir())
