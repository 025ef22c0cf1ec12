"""`python -m oscar_kv` is `oscar-kv`."""

import sys

from oscar_kv.cli import main

sys.exit(main())
