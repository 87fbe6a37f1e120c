"""Messages between agent and guardian: one JSON object a line over a socket pair; a file descriptor can go along."""

import os
import socket
from array import array
from collections import deque
from typing import Any, Final

import orjson

Body = dict[str, Any]

# A command of 96 KiB and an environment of 64 KiB, each byte written as \\u0000 at worst.
LINE_BYTES_MAX: Final = 2 * 1024 * 1024
# Some thousand messages to a peer that does not read: it is frozen, and what matters it decides without us.
BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
RECEIVE_BYTES: Final = 64 * 1024
DESCRIPTORS_MAX: Final = 32  # in one receive; each message carries one at most


class ChannelClosed(Exception):
    """The peer is gone, does not read, or sends what is no message."""


class Channel:
    """One end. Never blocks: the owner waits for the socket, for writing where `pending`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._out: deque[tuple[bytes, int | None]] = deque()
        self._out_bytes = 0
        self._in = bytearray()
        self._descriptors: deque[int] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def send(self, message: Body, descriptor: int | None = None) -> None:
        """Queue a message and send what the socket takes. The descriptor is duplicated; raises ChannelClosed."""
        if descriptor is not None:
            message = {**message, "descriptor": True}
        line = orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
        self._out.append((line, None if descriptor is None else os.dup(descriptor)))
        self._out_bytes += len(line)
        if self._out_bytes > BACKLOG_BYTES_MAX:
            raise ChannelClosed(f"the peer has not read {self._out_bytes} bytes")
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes; raises ChannelClosed."""
        while self._out:
            line, descriptor = self._out[0]
            rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
            try:
                sent = self.socket.sendmsg([line], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if descriptor is not None:
                os.close(descriptor)
            self._out_bytes -= sent
            if sent < len(line):
                self._out[0] = (line[sent:], None)
            else:
                self._out.popleft()

    def receive(self) -> list[tuple[Body, int | None]]:
        """What has arrived: messages, each with its descriptor, which the caller owns. Raises ChannelClosed at the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, RECEIVE_BYTES, DESCRIPTORS_MAX)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        if not data:
            raise ChannelClosed("the peer is gone")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptor)
        self._in += data
        if b"\n" not in data:
            if len(self._in) > LINE_BYTES_MAX:
                raise ChannelClosed(f"a message of over {LINE_BYTES_MAX} bytes")
            return []
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        messages: list[tuple[Body, int | None]] = []
        for line in lines:
            message: Body = orjson.loads(line)
            messages.append((message, self._descriptors.popleft() if message.pop("descriptor", False) else None))
        return messages
