"""Where things of this repository lie, for tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "records"
