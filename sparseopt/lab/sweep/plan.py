"""What a sweep consists of: given runs, or a search that makes them up as it goes.

A plan says which trials its study must have, and which configuration a trial stands for. It decides both from its own
settings: what the database holds can choose among them, and name nothing else.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.config.values import KINDS, options_of, spelled
from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.grid import point
from sparseopt.lab.sweep.space import Space, suggest

RUN = "run"
"""The attribute of a trial that names its run."""


class Plan(ABC):
    """The trials of a sweep, in the order in which they begin."""

    definition: Definition
    """What must be the same for all who join."""
    chooses: ClassVar[bool]
    """Does the configuration of a trial depend on what the others have shown?"""

    @abstractmethod
    def missing(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """The trials that the study lacks, ready to be added."""

    @abstractmethod
    def mine(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Those of the study's trials that are part of this plan: one for each run."""

    @abstractmethod
    def config(self, study: optuna.Study, trial: FrozenTrial) -> Config:
        """What to train for a trial that has just been claimed."""

    @abstractmethod
    def epochs(self, trial: FrozenTrial) -> int:
        """How long the run of a trial is."""

    @abstractmethod
    def settings(self, trial: FrozenTrial) -> dict[str, Any]:
        """The settings in which a trial differs from others, as far as they have been chosen."""


@dataclass(frozen=True)
class Runs(Plan):
    """Given configurations, each of them one trial."""

    configs: Mapping[str, Config]
    """By the name of the run."""
    definition: Definition
    varied: tuple[str, ...]
    """The settings in which they differ."""
    retry_failed: bool = False
    """Try those again that failed."""
    chooses: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        configs: Sequence[Config],
        definition: Definition,
        varied: Sequence[str] = (),
        *,
        retry_failed: bool = False,
    ) -> "Runs":
        if not configs:
            raise UserError("there is nothing to train: the sweep has no runs")
        return cls({each.run_name: each for each in configs}, definition, tuple(varied), retry_failed)

    def missing(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        newest = {trial.user_attrs[RUN]: trial for trial in self.mine(trials)}
        return [
            self._trial(name)
            for name in self.configs
            if name not in newest or (self.retry_failed and newest[name].state == TrialState.FAIL)
        ]

    def mine(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Of a run that was tried again, the newest trial."""
        known = [trial for trial in trials if trial.user_attrs.get(RUN) in self.configs]
        return list({trial.user_attrs[RUN]: trial for trial in known}.values())

    def config(self, study: optuna.Study, trial: FrozenTrial) -> Config:
        return self.configs[trial.user_attrs[RUN]]

    def epochs(self, trial: FrozenTrial) -> int:
        return self.configs[trial.user_attrs[RUN]].epochs

    def settings(self, trial: FrozenTrial) -> dict[str, Any]:
        config = self.configs[trial.user_attrs[RUN]]
        return {name: getattr(config, name) for name in self.varied if config.applies(name)}

    def _trial(self, name: str) -> FrozenTrial:
        """A waiting trial: what Optuna can draw axes for are its parameters, everything else is an attribute."""
        config = self.configs[name]
        values = {each: getattr(config, each) for each in self.varied}
        axes = {each: _axis(each, value) for each, value in values.items()}
        distributions = {each: axis for each, axis in axes.items() if axis is not None}
        return optuna.trial.create_trial(
            state=TrialState.WAITING,
            params={each: values[each] for each in distributions},
            distributions=distributions,
            user_attrs={
                RUN: name,
                **{each: spelled(value) for each, value in values.items() if each not in distributions},
            },
        )


@dataclass(frozen=True)
class Search(Plan):
    """A number of trials whose settings are chosen, one after the other, by what the ones before have shown."""

    base: Config
    space: Space
    trials: int
    definition: Definition
    chooses: ClassVar[bool] = True

    def missing(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        return [optuna.trial.create_trial(state=TrialState.WAITING)] * max(0, self.trials - len(trials))

    def mine(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        return list(trials[: self.trials])

    def config(self, study: optuna.Study, trial: FrozenTrial) -> Config:
        """Choose what the trial has not yet.

        Every trial has random numbers of its own, so that workers who begin at the same time do not choose the same.
        """
        key = hashlib.sha256(f"{self.base.seed} {trial.number}".encode()).digest()
        study.sampler = TPESampler(seed=int.from_bytes(key[:4]), constant_liar=True)
        return point(self.base, suggest(optuna.trial.Trial(study, trial._trial_id), self.space))

    def epochs(self, trial: FrozenTrial) -> int:
        return trial.params.get("epochs", self.base.epochs)

    def settings(self, trial: FrozenTrial) -> dict[str, Any]:
        return {name: trial.params[name] for name in self.space if name in trial.params}


def described(space: Space) -> dict[str, str]:
    """A search space as text, for comparison."""
    return {name: distribution_to_json(distribution) for name, distribution in space.items()}


def _axis(name: str, value: Any) -> BaseDistribution | None:
    """A distribution that holds the value and that any later value of the setting is compatible with."""
    kinds = options_of(KINDS[name])
    names = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)
    if names is not None:
        return CategoricalDistribution(names)
    if isinstance(value, bool):
        return CategoricalDistribution((False, True)) if len(kinds) == 1 else None
    if isinstance(value, int):
        return IntDistribution(value, value)
    return FloatDistribution(value, value) if isinstance(value, float) else None
