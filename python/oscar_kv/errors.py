"""Errors: one class for each status of the C interface. The message is one line."""


class OscarError(Exception):
    """Anything that the library refuses. The message names the thing, its value, what is right."""


class InvalidArgumentError(OscarError, ValueError):
    """A value outside its legal range."""


class NotFoundError(OscarError, LookupError):
    """No such file, tensor, layer, method."""


class CorruptError(OscarError, ValueError):
    """Bytes that contradict themselves or the format."""


class MismatchError(OscarError, ValueError):
    """Valid, but made for another model, shape or version."""


class UnsupportedError(OscarError, NotImplementedError):
    """Valid, but not something that this build, machine or model can do."""


class IoError(OscarError, OSError):
    """The system refused to read or write."""


class OutOfPagesError(OscarError, MemoryError):
    """Too few free pages; nothing has changed."""


class NotFiniteError(OscarError, ValueError):
    """A row held NaN or Inf; it was stored as zeros, the rest as given."""


class InternalError(OscarError, RuntimeError):
    """A fault of the library, or its memory is exhausted."""


# By the number of oscar_status.
BY_STATUS: dict[int, type[OscarError]] = {
    1: InvalidArgumentError,
    2: NotFoundError,
    3: CorruptError,
    4: MismatchError,
    5: UnsupportedError,
    6: IoError,
    7: OutOfPagesError,
    8: NotFiniteError,
    9: InternalError,
    10: InternalError,
}
