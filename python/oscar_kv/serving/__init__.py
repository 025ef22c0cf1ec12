"""What engine plugins share: method and bytes, exact copies and their validity, layers on pages.

Nothing here knows an engine. An engine's plugin gives it rows, slots and block tables of its own
scheduler, and pages that the engine owns.
"""

from oscar_kv.serving.copies import Copies, CopyBook
from oscar_kv.serving.cpu_layer import CpuLayer, CpuStep
from oscar_kv.serving.method import ServedMethod, open_method
from oscar_kv.serving.rows import RowBook

__all__ = [
    "Copies",
    "CopyBook",
    "CpuLayer",
    "CpuStep",
    "RowBook",
    "ServedMethod",
    "open_method",
]
