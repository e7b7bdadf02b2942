"""How the trainer and the uploader's own process talk over their two pipes.

To the uploader: one frame with the pickled plan, then lines; a trigger is the line ``t``, all
others are JSON. From the uploader: frames, each four bytes of length and a pickled dictionary.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import struct
import termios
import threading
from typing import Any, BinaryIO

TRIGGER = b"t\n"
_LENGTH = struct.Struct(">I")
_PATIENCE = 10.0


def encode_frame(message: Any) -> bytes:
    """Return a message as a frame.

    Args:
        message: Anything that can be pickled.
    """
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def read_frame(file: BinaryIO) -> Any | None:
    """Read the next frame; None at the end.

    Args:
        file: A pipe; only what belongs to the frame is read.
    """
    header = _read_exactly(file, _LENGTH.size)
    if header is None:
        return None
    (size,) = _LENGTH.unpack(header)
    data = _read_exactly(file, size)
    return None if data is None else pickle.loads(data)


def _read_exactly(file: BinaryIO, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size > 0:
        data = file.read(size)
        if not data:
            return None
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def unread(pipe: int) -> int:
    """Return how many bytes wait in a pipe; 0 where the system does not tell.

    Args:
        pipe: Descriptor of either end.
    """
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    except OSError:
        return 0
    return int(count)


class FrameWriter:
    """Writes frames into a pipe whose other end may be slow, or gone.

    Args:
        descriptor: The pipe; set to non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._broken = False

    def send(self, message: Any) -> None:
        """Send a message, or drop it if nobody takes it.

        Args:
            message: Anything that can be pickled.
        """
        view = memoryview(encode_frame(message))
        with self._lock:
            while view and not self._broken:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    ready = select.select([], [self._descriptor], [], _PATIENCE)[1]
                    self._broken = not ready
                except OSError:
                    self._broken = True
