"""Which vLLM this plugin was tested with."""

import os

from oscar_kv.errors import UnsupportedError

# Minor versions, and what was run on them.
TESTED = {
    (0, 25): "GPU benchmarks",
    (0, 32): "end to end on CPU",
    (0, 33): "contract of the interfaces used",
}
ALLOW = "OSCAR_ALLOW_UNTESTED"


def parse(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check(version: str) -> None:
    """Raises UnsupportedError for a version that was not tested, unless $OSCAR_ALLOW_UNTESTED=1."""
    try:
        known = parse(version) in TESTED
    except ValueError:
        known = False
    if known or os.environ.get(ALLOW) == "1":
        return
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    raise UnsupportedError(
        f"vLLM is {version}; oscar-kv was tested with {tested}; {ALLOW}=1 tries it all the same"
    )
