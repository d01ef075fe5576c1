"""What makes a sweep this one: who joins with other shared settings, or another search, has meant another sweep."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sparseopt.lab.config.differences import contrasted, differing
from sparseopt.lab.config.recipes import Config

Kind = Literal["grid", "search", "runs"]


@dataclass(frozen=True)
class Definition:
    """What all who work on a study must agree on. Which values a grid has is not part of it: a grid may grow."""

    kind: Kind
    shared: dict[str, Any] = field(default_factory=dict)
    """The settings that all runs have in common."""
    space: dict[str, str] = field(default_factory=dict)
    """What is searched, and where."""

    @classmethod
    def of(cls, kind: Kind, base: Config, varied: tuple[str, ...], space: dict[str, str]) -> "Definition":
        shared = {name: value for name, value in base.to_json().items() if name not in varied}
        return cls(kind, shared, space)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "shared": self.shared, "space": self.space}

    @classmethod
    def from_json(cls, value: Any) -> "Definition | None":
        """The definition that a study holds; None if it is none, or one of another program."""
        if not isinstance(value, dict) or value.get("kind") not in ("grid", "search", "runs"):
            return None
        shared, space = value.get("shared"), value.get("space")
        if not isinstance(shared, dict) or not isinstance(space, dict):
            return None
        return cls(value["kind"], shared, space)

    def differences(self, other: "Definition") -> list[str]:
        """In what `other`, of the one who wants to join, is not this one."""
        if self.kind != other.kind:
            return [f"it is a {self.kind} there, a {other.kind} here"]
        names = {*self.space, *other.space}
        searched = differing([{name: each.space.get(name) for name in names} for each in (self, other)])
        return [
            *contrasted(self.shared, other.shared),
            *(f"the search over {name} is another one" for name in sorted(searched)),
        ]

    def joined(self, other: "Definition") -> "Definition":
        """Both: a setting that one of them varies is no longer shared."""
        shared = {name: value for name, value in self.shared.items() if name in other.shared}
        return Definition(self.kind, shared, self.space)
