"""What the user sets, by environment or --additional-config '{"oscar": {...}}'."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from oscar_kv.errors import InvalidArgumentError

KEY = "oscar"


@dataclasses.dataclass(frozen=True)
class Settings:
    """kv: artefact or method with options, as --kv takes them; "": data-free, with a warning.

    strict: refuse to start without an artefact. copy_blocks: requests that can have exact copies at
    the same time; None: as many as vLLM runs. recompute: the last tokens of a prompt are computed
    though they are cached, as many as are kept exactly. mean_pairs: frequency pairs of the keys'
    mean that attention puts back, those with most of it; fewer are faster and worse; None: all.
    """

    kv: str = ""
    strict: bool = False
    copy_blocks: int | None = None
    recompute: bool = True
    mean_pairs: int | None = None


def read(additional_config: Any, environment: Mapping[str, str] | None = None) -> Settings:
    """additional_config wins over OSCAR_KV, _STRICT, _COPY_BLOCKS, _RECOMPUTE and _MEAN_PAIRS."""
    if environment is None:
        environment = os.environ
    given: dict[str, Any] = {}
    if "OSCAR_KV" in environment:
        given["kv"] = environment["OSCAR_KV"]
    if "OSCAR_STRICT" in environment:
        given["strict"] = _switch("OSCAR_STRICT", environment["OSCAR_STRICT"])
    for name in ("copy_blocks", "mean_pairs"):
        variable = f"OSCAR_{name.upper()}"
        if variable in environment:
            given[name] = _number(variable, environment[variable])
    if "OSCAR_RECOMPUTE" in environment:
        given["recompute"] = _switch("OSCAR_RECOMPUTE", environment["OSCAR_RECOMPUTE"])
    section = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(section, Mapping):
        raise InvalidArgumentError(f"additional_config['{KEY}'] is {section!r}; right: an object")
    names = [field.name for field in dataclasses.fields(Settings)]
    for name, value in section.items():
        if name not in names:
            raise InvalidArgumentError(
                f"additional_config['{KEY}'] has '{name}'; known: {', '.join(names)}"
            )
        given[name] = value
    settings = Settings(**given)
    if not isinstance(settings.kv, str):
        raise InvalidArgumentError(f"{KEY}.kv is {settings.kv!r}; right: a text")
    for name in ("strict", "recompute"):
        value = getattr(settings, name)
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{KEY}.{name} is {value!r}; right: true or false")
    for name in ("copy_blocks", "mean_pairs"):
        value = getattr(settings, name)
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgumentError(f"{KEY}.{name} is {value!r}; right: at least 1")
    return settings


def _switch(name: str, text: str) -> bool:
    if text not in ("0", "1", ""):
        raise InvalidArgumentError(f"{name} is '{text}'; right: 0 or 1")
    return text == "1"


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"{name} is '{text}'; right: a whole number") from None
