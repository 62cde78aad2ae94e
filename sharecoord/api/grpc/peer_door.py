"""The fleet's own door: PeerService on a server and a listener that serve nobody else."""

from __future__ import annotations

from sharecoord.api.grpc.peer_service import PeerService
from sharecoord.api.grpc.server import bind, make_peer_server
from sharecoord.config.endpoints import ListenAddress, TcpAddress
from sharecoord.config.process_settings import CoordinatorConfig
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair

LOCALHOST = "localhost"


class PeerDoor:
    """Where the other coordinators of a fleet get in."""

    def __init__(self, service: PeerService, *, message_bytes_max: int) -> None:
        """Opens nothing yet.

        Args:
            service: What is behind the door.
            message_bytes_max: Largest message of another coordinator.
        """
        self._service = service
        self._server = make_peer_server(service.handlers(), message_bytes_max=message_bytes_max)

    def bind(
        self,
        listen: ListenAddress,
        coordinator: CoordinatorConfig,
        pair: WatchedFiles[KeyPair] | None,
    ) -> TcpAddress:
        """Takes the port; returns the address with the port that it got.

        Args:
            listen: Where workers connect. The door is on the same host, so it is open to other
                machines only where that is allowed to be; beside a Unix socket it is on localhost.
            coordinator: Says which port.
            pair: What the listener shows, as it is at each connection; None = it speaks clear text.

        Raises:
            InvalidConfigError: The port can not be had.
        """
        host = listen.host if isinstance(listen, TcpAddress) else LOCALHOST
        wanted = TcpAddress(host, coordinator.peer_port)
        bound = bind(self._server, wanted, pair, setting="coordinator.peer.port")
        assert isinstance(bound, TcpAddress), "of a host and a port"
        return bound

    async def start(self) -> None:
        """Lets coordinators in that prove to belong to the fleet."""
        await self._server.start()

    async def stop(self) -> None:
        """Ends every link, which have no end of their own, and closes the door."""
        await self._service.stop()
        await self._server.stop(None)
