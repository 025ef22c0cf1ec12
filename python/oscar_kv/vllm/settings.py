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
    though they are cached, as many as are kept exactly.
    """

    kv: str = ""
    strict: bool = False
    copy_blocks: int | None = None
    recompute: bool = True


def read(additional_config: Any, environment: Mapping[str, str] | None = None) -> Settings:
    """additional_config wins over OSCAR_KV, _STRICT, _COPY_BLOCKS and _RECOMPUTE."""
    if environment is None:
        environment = os.environ
    given: dict[str, Any] = {}
    if "OSCAR_KV" in environment:
        given["kv"] = environment["OSCAR_KV"]
    if "OSCAR_STRICT" in environment:
        given["strict"] = _switch("OSCAR_STRICT", environment["OSCAR_STRICT"])
    if "OSCAR_COPY_BLOCKS" in environment:
        given["copy_blocks"] = _number("OSCAR_COPY_BLOCKS", environment["OSCAR_COPY_BLOCKS"])
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
    blocks = settings.copy_blocks
    if blocks is not None and (not isinstance(blocks, int) or blocks < 1):
        raise InvalidArgumentError(f"{KEY}.copy_blocks is {blocks!r}; right: at least 1")
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
