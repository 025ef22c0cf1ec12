"""What the user sets, by environment: SGLang hands plugins no options of their own."""

import dataclasses
import os
from collections.abc import Mapping

from oscar_kv.errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class Settings:
    """kv: artefact or method with options, as --kv takes them; "": data-free, with a warning.

    strict: refuse to start without an artefact. copy_blocks: requests that can have exact copies at
    the same time; None: as many as --max-running-requests says. recompute: the last tokens of a
    prompt are computed though they are cached, as many as are kept exactly. mean_pairs: frequency
    pairs of the keys' mean that attention puts back, those with most of it; fewer are faster and
    worse; None: all.
    """

    kv: str = ""
    strict: bool = False
    copy_blocks: int | None = None
    recompute: bool = True
    mean_pairs: int | None = None


def read(environment: Mapping[str, str] | None = None) -> Settings:
    """From OSCAR_KV, OSCAR_STRICT, OSCAR_COPY_BLOCKS, OSCAR_RECOMPUTE and OSCAR_MEAN_PAIRS."""
    given = os.environ if environment is None else environment

    def switch(name: str, default: bool) -> bool:
        text = given.get(name, "")
        if text not in ("0", "1", ""):
            raise InvalidArgumentError(f"{name} is '{text}'; right: 0 or 1")
        return text == "1" if text else default

    def number(name: str) -> int | None:
        text = given.get(name, "")
        if text and not (text.isascii() and text.isdigit() and int(text)):
            raise InvalidArgumentError(f"{name} is '{text}'; right: at least 1")
        return int(text) if text else None

    return Settings(
        given.get("OSCAR_KV", ""),
        switch("OSCAR_STRICT", False),
        number("OSCAR_COPY_BLOCKS"),
        switch("OSCAR_RECOMPUTE", True),
        number("OSCAR_MEAN_PAIRS"),
    )
