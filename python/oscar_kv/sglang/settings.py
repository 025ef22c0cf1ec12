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
    prompt are computed though they are cached, as many as are kept exactly.
    """

    kv: str = ""
    strict: bool = False
    copy_blocks: int | None = None
    recompute: bool = True


def read(environment: Mapping[str, str] | None = None) -> Settings:
    """From OSCAR_KV, OSCAR_STRICT, OSCAR_COPY_BLOCKS and OSCAR_RECOMPUTE."""
    given = os.environ if environment is None else environment

    def switch(name: str, default: bool) -> bool:
        text = given.get(name, "")
        if text not in ("0", "1", ""):
            raise InvalidArgumentError(f"{name} is '{text}'; right: 0 or 1")
        return text == "1" if text else default

    blocks = given.get("OSCAR_COPY_BLOCKS", "")
    if blocks and not (blocks.isascii() and blocks.isdigit() and int(blocks)):
        raise InvalidArgumentError(f"OSCAR_COPY_BLOCKS is '{blocks}'; right: at least 1")
    return Settings(
        given.get("OSCAR_KV", ""),
        switch("OSCAR_STRICT", False),
        int(blocks) if blocks else None,
        switch("OSCAR_RECOMPUTE", True),
    )
