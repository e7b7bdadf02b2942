"""A TCP proxy that breaks connections on purpose, one fault a connection."""

from __future__ import annotations

import contextlib
import enum
import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BUFFER = 65536
_DRAIN = 0.05
"""Seconds in which a client takes what was sent; a reset throws away what it has not read."""


class FaultKind(enum.Enum):
    """What goes wrong with a connection."""

    NONE = "none"
    REFUSE = "refuse"
    """Reset at once."""
    CUT_REQUEST = "cut_request"
    """Reset after some bytes of what the client sends."""
    CUT_ANSWER = "cut_answer"
    """Reset after some bytes of what the server answers."""
    LOSE_ANSWER = "lose_answer"
    """The server does it, the client never hears of it."""
    SILENCE = "silence"
    """Take some bytes, then nothing any more, in either direction."""
    SILENT_ANSWER = "silent_answer"
    """Pass some bytes of the answer, then nothing any more."""
    DELAY = "delay"
    """Wait before the first byte is passed on."""
    SLOW_REQUEST = "slow_request"
    """Pause after each 64 KiB that the client sends."""
    TRICKLE = "trickle"
    """Pass the answer in small pieces with pauses."""
    CORRUPT_ANSWER = "corrupt_answer"
    """Change one byte of the answer's body."""
    STATUS = "status"
    """Answer with a status of the proxy's own; the server hears nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One connection's fate.

    Attributes:
        kind: What goes wrong.
        after: Bytes that pass first.
        seconds: How long a delay or pause is.
        status: For ``STATUS``: the HTTP status.
        retry_after: For ``STATUS``: the header of that name.
    """

    kind: FaultKind
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    retry_after: str | None = None


NO_FAULT = Fault(kind=FaultKind.NONE)


class FaultProxy:
    """Listens on loopback and passes connections on, each with the next fault of a list.

    Use it as a context manager.

    Args:
        target_port: The loopback port of the real server.
        faults: One for each connection, in order.
        otherwise: For all connections after those.
    """

    def __init__(
        self, target_port: int, faults: Iterable[Fault] = (), *, otherwise: Fault = NO_FAULT
    ) -> None:
        self._target_port = target_port
        self._faults = list(faults)
        self._otherwise = otherwise
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._stopped = threading.Event()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The HTTP address, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def plan(self, *faults: Fault, otherwise: Fault = NO_FAULT) -> None:
        """Set what happens to the connections from now on.

        Args:
            *faults: One for each connection, in order.
            otherwise: For all connections after those.
        """
        with self._lock:
            self._faults, self._otherwise = list(faults), otherwise

    def drop_all(self) -> None:
        """Reset every connection that is open now."""
        with self._lock:
            _reset(*self._sockets)
            self._sockets.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        with self._lock:
            _reset(*self._sockets)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                fault = self._faults.pop(0) if self._faults else self._otherwise
                self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client, fault), daemon=True).start()

    def _serve(self, client: socket.socket, fault: Fault) -> None:
        with contextlib.suppress(OSError):
            if fault.kind is FaultKind.REFUSE:
                _reset(client)
                return
            if fault.kind is FaultKind.STATUS:
                self._answer_with_status(client, fault)
                return
            if fault.kind is FaultKind.DELAY:
                self._stopped.wait(fault.seconds)
            server = socket.create_connection(("127.0.0.1", self._target_port))
            with self._lock:
                self._sockets.append(server)
            threading.Thread(
                target=self._pass_answers, args=(server, client, fault), daemon=True
            ).start()
            self._pass_requests(client, server, fault)

    def _pass_requests(self, client: socket.socket, server: socket.socket, fault: Fault) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := client.recv(_BUFFER):
                passed += len(data)
                if fault.kind is FaultKind.CUT_REQUEST and passed > fault.after:
                    _reset(client, server)
                    return
                if fault.kind is FaultKind.SILENCE and passed > fault.after:
                    self._stopped.wait()
                    return
                server.sendall(data)
                if fault.kind is FaultKind.SLOW_REQUEST:
                    self._stopped.wait(fault.seconds * len(data) / _BUFFER)
            server.shutdown(socket.SHUT_WR)

    def _pass_answers(self, server: socket.socket, client: socket.socket, fault: Fault) -> None:
        passed = 0
        corrupter = _Corrupter() if fault.kind is FaultKind.CORRUPT_ANSWER else None
        with contextlib.suppress(OSError):
            while data := server.recv(_BUFFER):
                if fault.kind is FaultKind.LOSE_ANSWER:
                    _reset(client, server)
                    return
                if fault.kind in (FaultKind.CUT_ANSWER, FaultKind.SILENT_ANSWER):
                    rest = fault.after - passed
                    if len(data) > rest:
                        client.sendall(data[: max(0, rest)])
                        self._stopped.wait(_DRAIN)
                        if fault.kind is FaultKind.SILENT_ANSWER:
                            self._stopped.wait()
                        _reset(client, server)
                        return
                passed += len(data)
                if corrupter is not None:
                    data = corrupter.pass_on(data)
                if fault.kind is FaultKind.TRICKLE:
                    self._trickle(client, data, fault.seconds)
                else:
                    client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _trickle(self, client: socket.socket, data: bytes, pause: float) -> None:
        piece = max(1, len(data) // 8)
        for start in range(0, len(data), piece):
            self._stopped.wait(pause)
            client.sendall(data[start : start + piece])

    def _answer_with_status(self, client: socket.socket, fault: Fault) -> None:
        _read_request(client)
        extra = f"Retry-After: {fault.retry_after}\r\n" if fault.retry_after else ""
        client.sendall(
            f"HTTP/1.1 {fault.status} Fault\r\n{extra}Content-Length: 0\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        client.close()


class _Corrupter:
    """Changes the first byte after the first header block."""

    def __init__(self) -> None:
        self._seen = b""
        self._done = False

    def pass_on(self, data: bytes) -> bytes:
        if self._done:
            return data
        before = len(self._seen)
        self._seen += data
        end = self._seen.find(b"\r\n\r\n")
        if end < 0 or len(self._seen) <= end + 4:
            return data
        self._done = True
        place = end + 4 - before
        if place < 0:
            place = 0
        return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def _read_request(client: socket.socket) -> None:
    """Take a whole request, so that the client is ready for its answer."""
    client.settimeout(10)
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(_BUFFER)
        if not data:
            return
        head += data
    head, _, body = head.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    missing = (int(found[1]) if found else 0) - len(body)
    while missing > 0:
        data = client.recv(min(_BUFFER, missing))
        if not data:
            return
        missing -= len(data)


def _reset(*sockets: socket.socket) -> None:
    """Close so that the other side sees a reset, not an end."""
    for one in sockets:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            one.close()
