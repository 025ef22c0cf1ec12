"""Which SGLang this plugin was checked against."""

import os

from oscar_kv.errors import UnsupportedError

# Versions, and what was checked on them.
CHECKED = {"0.5.23": "contract of the interfaces used"}
ALLOW = "OSCAR_ALLOW_UNTESTED"


def check(version: str) -> None:
    """Raises UnsupportedError for a version that was not checked, unless $OSCAR_ALLOW_UNTESTED=1.

    SGLang moves its interfaces in patch releases too, so the whole version counts; what builders
    append ("+cu130", ".post1") does not.
    """
    known = version.split("+")[0].split(".post")[0] in CHECKED
    if known or os.environ.get(ALLOW) == "1":
        return
    raise UnsupportedError(
        f"SGLang is {version}; oscar-kv was checked against {', '.join(CHECKED)}; {ALLOW}=1 tries "
        "it all the same"
    )
