"""Hugging Face transformers: calibration, a cache class, R_V absorbed into W_O."""

from oscar_kv.transformers.absorb import absorb_value_rotation
from oscar_kv.transformers.cache import OscarCache
from oscar_kv.transformers.calibration import calibrate, calibrate_folder
from oscar_kv.transformers.model import describe

__all__ = ["OscarCache", "absorb_value_rotation", "calibrate", "calibrate_folder", "describe"]
