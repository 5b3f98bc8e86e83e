"""How everything that a user writes is checked: `true` is no integer, "16" is no integer, an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Base of all that is read from files and flags."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
