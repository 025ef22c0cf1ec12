"""The entry point: makes the backend oscar known to SGLang, in each of its processes."""

import logging
from typing import Any

from oscar_kv.serving.registration import never_raises
from oscar_kv.sglang.refusals import NAME

logger = logging.getLogger("sglang.oscar_kv")
_refusal: Exception | None = None


@never_raises(NAME, logger)
def register() -> None:
    """Registers the backend. May be called again; never raises, whatever this SGLang is."""
    global _refusal
    from sglang.srt.arg_groups.choices import (
        ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import (
        ATTENTION_BACKENDS,
        register_attention_backend,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.version import __version__

    from oscar_kv.errors import UnsupportedError
    from oscar_kv.sglang import hooks, versions

    if ATTENTION_BACKENDS.get(NAME) is _create:
        return
    if NAME in ATTENTION_BACKENDS:
        logger.warning(
            "oscar-kv: this SGLang has an attention backend %s of its own; it is left as it is",
            NAME,
        )
        return
    # An SGLang that was not checked is told from the others when the backend is chosen, so that it
    # says why, instead of not knowing the name; nothing of it is wrapped.
    try:
        versions.check(__version__)
        _refusal = None
    except UnsupportedError as error:
        _refusal = error
    register_attention_backend(NAME)(_create)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    if _refusal is None:
        hooks.register(HookRegistry, HookType)


def _create(runner: Any) -> Any:
    if _refusal is not None:
        raise _refusal
    from oscar_kv.sglang.backend import OscarAttnBackend

    return OscarAttnBackend(runner)
