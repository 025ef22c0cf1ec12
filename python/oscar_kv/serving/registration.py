"""Entry points of engines: loading the plugin never breaks an engine for others."""

import functools
import logging
from collections.abc import Callable


def never_raises(name: str, logger: logging.Logger) -> Callable[[Callable[[], None]], Callable]:
    """Decorates what registers the attention backend `name`: what it raises is logged."""

    def decorate(register: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(register)
        def guarded() -> None:
            try:
                register()
            except Exception as error:
                logger.warning(
                    "oscar-kv: the attention backend %s is not available (%s: %s)",
                    name,
                    type(error).__name__,
                    error,
                )

        return guarded

    return decorate
