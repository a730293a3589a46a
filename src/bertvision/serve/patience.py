"""Connections on which no request comes: they are closed in time, so that they cannot take up the room of others."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

Protocol: Any = AutoHTTPProtocol


def patient(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, but the head of a request must be there within so many seconds of its beginning."""

    class Patient(Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.end_deadline()  # the head is complete; bodies and answers have limits of their own
            elif self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self.end_deadline()
            super().connection_lost(exc)

        def end_deadline(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Patient
