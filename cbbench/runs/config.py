"""A workload file and the command line -> what will be run. Everything on the command line wins over the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from cbbench import plugins
from cbbench.errors import UserError
from cbbench.plugins import AXES
from cbbench.runs.arm_names import parse_arm
from cbbench.strategy import Strategy, StrictOptions
from cbbench.workload.file import ArmChoice, Workload
from cbbench.workload.yaml_source import Loc, explain

if TYPE_CHECKING:
    from cbbench.attention.base import Attention
    from cbbench.kvcache.base import KVSpec

DEFAULTS = {"scheduler": "continuous", "attn": "varlen", "kv": "paged"}
DEFAULT_MAX_NUM_SEQS = 8


@dataclass(frozen=True)
class Overrides:
    """The command line's say; None where it says nothing."""

    axes: dict[str, str | None] = field(default_factory=dict)  # axis -> a name, a comma list, or `all`
    arms: list[str] = field(default_factory=list)  # scheduler+attn+kv
    sets: list[str] = field(default_factory=list)  # kv.block_size=32
    memory_budget: str | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True)
class Chosen:
    """One strategy with its options."""

    name: str
    cls: type[Strategy]
    options: StrictOptions

    @property
    def label(self) -> str:
        """The name, and the options that are not at their defaults."""
        changed = [f"{key}={value}" for key, value in self.options.model_dump(exclude_defaults=True).items()]
        return f"{self.name.replace(':', '.')}({','.join(changed)})" if changed else self.name.replace(":", ".")


@dataclass(frozen=True)
class Arm:
    """One combination to run."""

    scheduler: Chosen
    attn: Chosen
    kv: Chosen
    max_num_seqs: int
    memory_budget: str | None
    is_base: bool = False  # marked `baseline: true`
    revision: str | None = None  # a commit whose code runs it; None: this one
    is_copy: bool = False  # the same again, for A against A

    @property
    def label(self) -> str:
        suffix = f"@{self.revision}" if self.revision else "#again" if self.is_copy else ""
        return self.strategy_label + suffix

    @property
    def strategy_label(self) -> str:
        return "+".join(chosen.label for chosen in (self.scheduler, self.attn, self.kv))

    def strategies(self, changed_only: bool = False) -> dict[str, dict[str, Any]]:
        """As a workload names them; `changed_only`: without options at their defaults."""
        pairs = zip(AXES, (self.scheduler, self.attn, self.kv), strict=True)
        return {axis: {"name": chosen.name, **chosen.options.model_dump(exclude_defaults=changed_only)} for axis, chosen in pairs}

    def describe(self) -> dict[str, Any]:
        """Everything that decides what it does, for run.json."""
        said = {"label": self.label, **self.strategies(), "max_num_seqs": self.max_num_seqs, "memory_budget": self.memory_budget}
        if self.is_base:
            said["baseline"] = True
        if self.revision or self.is_copy:
            said |= {"base_of": self.strategy_label, "revision": self.revision}
        return said


@dataclass(frozen=True)
class PeerArm:
    """Another system on the same requests (`--peer`)."""

    chosen: Chosen
    max_num_seqs: int

    @property
    def label(self) -> str:
        name, bracket, options = self.chosen.label.partition("(")
        return name.replace("_", "-") + bracket + options

    def describe(self) -> dict[str, Any]:
        return {"label": self.label, "peer": self.chosen.name, **self.chosen.options.model_dump(), "max_num_seqs": self.max_num_seqs}


def build_peers(text: str | None, sets: list[str], pythons: list[str], max_num_seqs: int) -> list[PeerArm]:
    """`hf-generate,vllm` -> peers with the options that `--set peer.OPTION=VALUE` and `--peer-python NAME=PATH` give.
    Raises UserError."""
    peers = []
    python_of = dict(map(_split_python, pythons))
    for name in dict.fromkeys(word.strip().replace("-", "_") for word in (text or "").split(",") if word.strip()):
        cls = plugins.find("peer", name)
        options = cls.Options.model_fields
        given = {option: value for axis, option, value in map(_split_set, sets) if axis == "peer" and option in options}
        if "python" in options and name in python_of:
            given["python"] = python_of.pop(name)
        try:
            peers.append(PeerArm(Chosen(name, cls, cls.Options.model_validate(given)), max_num_seqs))
        except ValidationError as error:
            raise explain(error, cls.Options, lambda loc: f"--set peer.{'.'.join(map(str, loc))}") from error
    known = sorted({option for peer in peers for option in peer.chosen.cls.Options.model_fields})
    for axis, option, _ in map(_split_set, sets):
        if axis == "peer" and option not in known:
            raise UserError(f"--set peer.{option}: no chosen peer has this option; they have {', '.join(known) or 'none'}")
    if python_of:
        name = next(iter(python_of))
        raise UserError(f"--peer-python {name}={python_of[name]}: no peer of that name that runs in an interpreter of its own is chosen")
    return peers


def _split_python(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise UserError(f"--peer-python {text}: should be NAME=PATH, like vllm=.venv-vllm/bin/python")
    return name.replace("-", "_"), path


def build_arms(workload: Workload, overrides: Overrides) -> list[Arm]:
    """The arms to run, each checked. Raises UserError with the place in the file or the flag that is wrong."""
    file = workload.file
    picks: list[tuple[dict[str, dict[str, Any]], ArmChoice, Loc | None]]
    if any(overrides.axes.values()):
        if overrides.arms:
            raise UserError("--arm names whole arms; it does not go with --scheduler, --attn or --kv")
        lists = [_axis_names(axis, overrides.axes.get(axis)) for axis in AXES]
        named = ({axis: {"name": name} for axis, name in zip(AXES, names, strict=True) if name} for names in itertools.product(*lists))
        picks = [(names, file.engine, None) for names in named]
    elif overrides.arms:
        picks = [(parse_arm(text), file.engine, None) for text in overrides.arms]
    else:
        picks = [({}, arm, ("arms", index)) for index, arm in enumerate(file.arms)] or [({}, file.engine, ("engine",))]
    sets = [found for found in map(_split_set, overrides.sets) if found[0] != "peer"]
    arms = [_build(workload, names, choice, loc, sets, overrides) for names, choice, loc in picks]
    _check_sets_used(sets, arms)
    labels = [arm.label for arm in arms]
    for arm in arms:
        if labels.count(arm.label) > 1:
            raise UserError(f"two arms are both {arm.label}: name each once, or give them different options")
    return arms


def _axis_names(axis: str, text: str | None) -> list[str | None]:
    if text is None:
        return [None]
    if text == "all":
        return list(plugins.names(axis))
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _split_set(text: str) -> tuple[str, str, Any]:
    """`kv.block_size=32` -> axis, option, value; `max_num_seqs=16` -> "", max_num_seqs, 16."""
    path, equals, value = text.partition("=")
    axis, _, option = path.strip().rpartition(".")
    if not equals or (axis not in (*AXES, "peer") and path.strip() not in ("max_num_seqs", "memory_budget")):
        raise UserError(f"--set {text}: should be scheduler.OPTION=VALUE, attn.OPTION=VALUE, kv.OPTION=VALUE or max_num_seqs=N")
    try:
        return axis, option, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"--set {text}: the value is not valid YAML") from error


def parse_options(texts: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` of --option, the value as YAML reads it."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--option {text}: should be KEY=VALUE")
        try:
            options[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"--option {text}: the value is not valid YAML") from error
    return options


def _build(
    workload: Workload, names: dict[str, dict[str, Any]], choice: ArmChoice, loc: Loc | None, sets: list[Any], overrides: Overrides
) -> Arm:
    engine = workload.file.engine
    chosen = {}
    for axis in AXES:
        own, base = getattr(choice, axis), getattr(engine, axis)
        written = own or base or {"name": DEFAULTS[axis]}
        at: Loc = (*(loc if own and loc else ("engine",)), axis)
        named = names.get(axis, {})
        written = {**(written if named.get("name", written["name"]) == written["name"] else {}), **named}
        chosen[axis] = _choose(workload, axis, written, at, sets, named)
    limits = {
        "max_num_seqs": overrides.max_num_seqs or choice.max_num_seqs or engine.max_num_seqs or DEFAULT_MAX_NUM_SEQS,
        "memory_budget": overrides.memory_budget or choice.memory_budget or engine.memory_budget,
    }
    limits |= {option: value for axis, option, value in sets if not axis}
    try:
        checked = ArmChoice.model_validate(limits)
    except ValidationError as error:
        raise explain(error, ArmChoice, lambda loc: f"--{str(loc[0]).replace('_', '-')}") from error
    num_seqs = checked.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    return Arm(chosen["scheduler"], chosen["attn"], chosen["kv"], num_seqs, checked.memory_budget, choice.baseline)


def _choose(workload: Workload, axis: str, written: dict[str, Any], at: Loc, sets: list[Any], named: dict[str, Any]) -> Chosen:
    try:
        cls = plugins.find(axis, written["name"])
    except UserError as error:
        raise UserError(f"--{axis}: {error}" if named else f"{workload.source.where(at)}: {error}") from error
    from_flags = {option: value for set_axis, option, value in sets if set_axis == axis and option in cls.Options.model_fields}
    given = {key: value for key, value in written.items() if key != "name"} | from_flags

    def where(loc: Loc) -> str:
        if loc and loc[0] in from_flags:
            return f"--set {axis}.{loc[0]}"
        return f"--arm: {axis}.{loc[0]}" if loc and loc[0] in named else workload.source.where((*at, *loc))

    try:
        return Chosen(written["name"], cls, cls.Options.model_validate(given))
    except ValidationError as error:
        raise explain(error, cls.Options, where) from error


def _check_sets_used(sets: list[tuple[str, str, Any]], arms: list[Arm]) -> None:
    for axis, option, _ in sets:
        if not axis:
            continue
        classes = [getattr(arm, axis).cls for arm in arms]
        if not any(option in cls.Options.model_fields for cls in classes):
            known = sorted({f"{axis}.{name}" for cls in classes for name in cls.Options.model_fields})
            raise UserError(f"--set {axis}.{option}: no chosen {axis} has this option; they have {', '.join(known) or 'none'}")


def check_peers(peers: Iterable[PeerArm], device: str, dtype: str) -> None:
    """Refuses a peer that is not here, with how to get it."""
    for peer in peers:
        if reason := peer.chosen.cls.cannot_run(device, dtype, peer.chosen.options):
            raise UserError(f"--peer {peer.label}: {reason}")


def check_runnable(arms: list[Arm], device: str, dtype: str) -> None:
    """Refuses an arm that the device or dtype cannot carry, naming the ones that can."""
    for arm in arms:
        for axis in AXES:
            chosen: Chosen = getattr(arm, axis)
            reason = chosen.cls.cannot_run(device, dtype, chosen.options)
            if reason:
                others = ", ".join(name for name in plugins.names(axis) if why_not(axis, name, device, dtype) is None)
                raise UserError(f"{arm.label} cannot run: {reason} (on {device} in {dtype} these work: {others})")


def check_served(arms: list[Arm], spec: KVSpec, device: str) -> None:
    """Refuses an arm whose attention cannot serve a model of this shape."""
    for arm in arms:
        if (attention := attention_of(arm)) is not None and (reason := attention.cannot_serve(spec, device)):
            raise UserError(f"{arm.label} cannot serve this model: {reason}")


def attention_of(arm: Arm) -> Attention | None:
    """None where somebody's class cannot be made: its arm will fail by itself, as a row."""
    with suppress(Exception):
        made: Attention = arm.attn.cls(arm.attn.options)  # type: ignore[call-arg,assignment]
        return made
    return None


def why_not(axis: str, name: str, device: str, dtype: str) -> str | None:
    """Why a strategy with its default options cannot run; None where it can."""
    try:
        cls = plugins.find(axis, name)
        return cls.cannot_run(device, dtype, cls.Options())
    except ValidationError as error:
        return f"needs its option {error.errors()[0]['loc'][0]} to be set"
    except UserError as error:
        return str(error)
