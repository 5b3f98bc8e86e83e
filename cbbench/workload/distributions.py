"""Token lengths drawn from a distribution, as one writes it: 128, uniform:min=16,max=512, lognormal:mean=300,cv=1."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import yaml
from pydantic import Field, ValidationError, model_validator

from cbbench.errors import UserError
from cbbench.strict import Strict
from cbbench.workload.yaml_source import explain

Lengths = np.ndarray[Any, np.dtype[np.int64]]
FORMS = "N, uniform:min=N,max=N or lognormal:mean=N,cv=X[,min=N][,max=N]"


class Distribution(Protocol):
    def draw(self, rng: np.random.Generator, num: int) -> Lengths: ...


class Fixed(Strict):
    tokens: int = Field(ge=1)

    def draw(self, rng: np.random.Generator, num: int) -> Lengths:
        return np.full(num, self.tokens)


class Uniform(Strict):
    """Both ends included."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is more than max={self.max}")
        return self

    def draw(self, rng: np.random.Generator, num: int) -> Lengths:
        return rng.integers(self.min, self.max, num, endpoint=True)


class Lognormal(Strict):
    """`mean` and coefficient of variation of the lengths themselves; what falls outside min and max is set to them."""

    mean: float = Field(gt=0)
    cv: float = Field(gt=0)
    min: int = Field(1, ge=1)
    max: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is more than max={self.max}")
        return self

    def draw(self, rng: np.random.Generator, num: int) -> Lengths:
        variance = np.log1p(self.cv**2)
        drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), num)
        return np.clip(np.rint(drawn), self.min, self.max or 2**31).astype(np.int64)


KINDS: dict[str, type[Fixed] | type[Uniform] | type[Lognormal]] = {"fixed": Fixed, "uniform": Uniform, "lognormal": Lognormal}


def parse(flag: str, text: str) -> Distribution:
    """Raises UserError with the forms that are understood."""
    kind, _, rest = (text if ":" in text else f"fixed:tokens={text}").partition(":")
    parts = [part.partition("=") for part in rest.split(",") if part]
    if kind not in KINDS or not all(equals for _, equals, _ in parts):
        raise UserError(f"{flag} {text}: should be {FORMS}")
    try:
        return KINDS[kind].model_validate({key.strip(): yaml.safe_load(value) for key, _, value in parts})
    except yaml.YAMLError as error:
        raise UserError(f"{flag} {text}: should be {FORMS}") from error
    except ValidationError as error:
        raise explain(error, KINDS[kind], lambda loc: f"{flag} {text}") from error
