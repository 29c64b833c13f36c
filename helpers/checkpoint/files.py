"""Opening files that a stranger made: only regular files, only up to a stated size, and every failure one line."""

import gc
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from helpers.errors import InputError


def open_regular(path: Path) -> BinaryIO:
    """An unbuffered binary file. InputError when it is not a regular file or cannot be opened.

    O_NONBLOCK, because opening a FIFO that nobody writes to would otherwise wait for ever.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror}); check the link, the permissions and the path") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: not a regular file; put the real file there, or a link to it")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_exactly(file: BinaryIO, size: int) -> bytes:
    """size bytes from here on, fewer only at the end of the file: an unbuffered read may return less than was asked for."""
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def read_limited(path: Path, limit: int) -> bytes:
    """The whole file. InputError above limit bytes, because parsing it would cost memory in multiples of that."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(f"{path}: {size:,} bytes, more than the {limit:,} that such a file may have; is it the right file?")
        return read_exactly(file, size)


@contextmanager
def without_gc() -> Iterator[None]:
    """The collector would walk hundreds of thousands of new objects again and again, and none of them is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
