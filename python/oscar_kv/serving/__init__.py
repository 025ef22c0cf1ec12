"""What engine plugins share: method and bytes, exact copies and their validity, layers on pages.

Nothing here knows an engine. An engine's plugin gives it rows, slots and block tables of its own
scheduler, and pages that the engine owns.
"""

from oscar_kv.serving.books import Books
from oscar_kv.serving.copies import Copies, CopyBook
from oscar_kv.serving.cpu_layer import CpuLayer, CpuStep
from oscar_kv.serving.method import ServedMethod, open_method
from oscar_kv.serving.row_blocks import RowBlocks
from oscar_kv.serving.rows import RowBook

__all__ = [
    "Books",
    "Copies",
    "CopyBook",
    "CpuLayer",
    "CpuStep",
    "RowBlocks",
    "RowBook",
    "ServedMethod",
    "open_method",
]
