"""The ledger client of Bindery, for Bindery and Apache BookKeeper bookies.

Each method that waits is there twice: ``name`` blocks, with the GIL released and Ctrl-C heeded, and ``name_async``
returns an asyncio future of the running event loop. Cancelling such a future drops the call; of an append that means
that the entry stays on its way. Entries get their ids in the order of the calls.

Ids are integers from 0. Times are seconds, sizes bytes. Objects may be used by several threads. After a fork, use
bindery in one of the two processes only (``multiprocessing`` with "spawn").
"""

from asyncio import Future
from types import TracebackType
from typing import Literal, final

__all__ = [
    "BinderyError",
    "Client",
    "ClosedError",
    "Entry",
    "EntryIterator",
    "FencedError",
    "LedgerReader",
    "LedgerWriter",
    "NoEntryError",
    "NotEnoughBookiesError",
    "NotFoundError",
    "TooLargeError",
    "UnavailableError",
    "WrongPasswordError",
]

class BinderyError(Exception):
    """Whatever goes wrong with the cluster. All others derive from it."""

class NotFoundError(BinderyError):
    """There is no such ledger, or it was deleted."""

class WrongPasswordError(BinderyError):
    """The password is not the ledger's."""

class ClosedError(BinderyError):
    """The client or writer was closed by this program."""

class FencedError(BinderyError):
    """Another client closed or recovers the ledger: write on in a new one."""

class NotEnoughBookiesError(BinderyError):
    """Too few bookies for the ensemble or the ack quorum."""

class TooLargeError(BinderyError):
    """The entry is too large. The writer lives on."""

class NoEntryError(BinderyError):
    """The entry is behind the ledger's end, or on none of its bookies."""

class UnavailableError(BinderyError):
    """Bookies or the metadata store could not be asked: try again when they are back."""

@final
class Client:
    """A client of a cluster. It connects when it is first needed; as a context manager, on entry, and closes on exit."""

    def __new__(
        cls,
        metadata_uri: str,
        *,
        session_timeout: float | None = None,
        request_timeout: float | None = None,
        memory_limit: int | None = None,
        slow_replica_bytes_max: int | None = None,
        explicit_lac_interval: float | None = None,
    ) -> Client:
        """``metadata_uri``, for example ``zk://127.0.0.1:2181/ledgers``, else ``ValueError``.

        ``session_timeout`` (10 s) of the metadata store; ``request_timeout`` (5 s) of a bookie; ``memory_limit``
        (64 MiB) of entries in flight, and as much again of entries read ahead; ``slow_replica_bytes_max`` (half of
        that): what a bookie may hold up before it is replaced; ``explicit_lac_interval`` (0.1 s): how long a
        confirmed entry of an idle ledger may stay hidden from readers, 0 for ever.
        """

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
    ) -> LedgerWriter:
        """Creates a ledger with this process as its writer.

        Entries are spread over ``ensemble`` bookies, each stored on ``write_quorum`` of them and confirmed by
        ``ack_quorum``. ``custom``: free properties of the ledger. Raises ``ValueError`` for sizes that are no quorum,
        ``NotEnoughBookiesError``, ``UnavailableError``.
        """

    def create_async(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
    ) -> Future[LedgerWriter]:
        """``create`` for asyncio."""

    def open(self, ledger: int, *, password: bytes | bytearray | None = None, recover: bool = True) -> LedgerReader:
        """Opens a ledger for reading.

        With ``recover`` an unclosed one is fenced, recovered and closed on the way: its writer can write no more,
        and what is then read is final. Without, it is left alone: entries up to the last confirmed one can be read,
        and followed. Raises ``NotFoundError``, ``WrongPasswordError``, ``UnavailableError``.
        """

    def open_async(
        self, ledger: int, *, password: bytes | bytearray | None = None, recover: bool = True
    ) -> Future[LedgerReader]:
        """``open`` for asyncio."""

    def delete(self, ledger: int) -> None:
        """Deletes a ledger. Raises ``NotFoundError``, ``UnavailableError``."""

    def delete_async(self, ledger: int) -> Future[None]:
        """``delete`` for asyncio."""

    def close(self) -> None:
        """Ends the client. Writers that are not closed leave their ledgers open, for recovery."""

    def close_async(self) -> Future[None]:
        """``close`` for asyncio."""

    def __enter__(self) -> Client: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Future[Client]: ...
    def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> Future[None]: ...

@final
class LedgerWriter:
    """The writer of a ledger. As a context manager it closes the ledger on exit."""

    @property
    def id(self) -> int:
        """The ledger."""

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that fits an entry."""

    @property
    def last_confirmed(self) -> int | None:
        """The last confirmed entry: it and all before it are safe."""

    def append(self, payload: bytes | bytearray) -> int:
        """Appends an entry and waits until it is confirmed; its id.

        Raises ``TooLargeError`` (the writer lives on), and when it can write no more ``FencedError``,
        ``NotEnoughBookiesError``, ``ClosedError`` or ``UnavailableError``: the message names the last confirmed entry.
        """

    def append_async(self, payload: bytes | bytearray) -> Future[int]:
        """``append`` for asyncio. The entry has its place in the ledger when this returns, unless room was lacking."""

    def enqueue(self, payload: bytes | bytearray) -> int:
        """Waits for room only, and sends an entry; its id. Errors as of ``append``; see ``drain``."""

    def enqueue_async(self, payload: bytes | bytearray) -> Future[int]:
        """``enqueue`` for asyncio. Cancelled before it was done, it has taken no id."""

    def drain(self) -> int | None:
        """Waits until every entry so far is confirmed; the last confirmed one. Errors as of ``append``."""

    def drain_async(self) -> Future[int | None]:
        """``drain`` for asyncio."""

    def close(self) -> None:
        """Waits for the calls under way, drains, closes the ledger for good. Again: does nothing."""

    def close_async(self) -> Future[None]:
        """``close`` for asyncio. Cancelled, it leaves the ledger open or closed, and the writer closed."""

    def __enter__(self) -> LedgerWriter: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Future[LedgerWriter]: ...
    def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> Future[None]: ...

@final
class LedgerReader:
    """Reads a ledger. Iterating over it, with ``for`` or ``async for``, reads up to the last confirmed entry."""

    @property
    def id(self) -> int:
        """The ledger."""

    @property
    def is_closed(self) -> bool:
        """Whether the ledger was closed, as far as this reader knows."""

    @property
    def last_add_confirmed(self) -> int | None:
        """The last entry of a closed ledger; the last confirmed one known so far of an open one."""

    @property
    def length_bytes(self) -> int | None:
        """Sum of the payloads of a closed ledger; ``None`` while it is open."""

    def refresh(self) -> int | None:
        """Asks for the last confirmed entry of an open ledger anew, and whether it was closed."""

    def refresh_async(self) -> Future[int | None]:
        """``refresh`` for asyncio."""

    def read_entry(self, entry: int) -> Entry:
        """Reads one entry. Raises ``NoEntryError``, ``UnavailableError``, ``NotFoundError``, ``ClosedError``."""

    def read_entry_async(self, entry: int) -> Future[Entry]:
        """``read_entry`` for asyncio."""

    def read(self, first: int = 0, last: int | None = None) -> EntryIterator:
        """Entries ``first`` to ``last``, both included, read ahead; ``last``: up to the last confirmed entry.

        Iterating raises what ``read_entry`` raises.
        """

    def read_unconfirmed(self, first: int, last: int) -> EntryIterator:
        """As ``read``, also behind the last confirmed entry of an open ledger: such entries may vanish."""

    def tail(self, first: int = 0) -> EntryIterator:
        """Follows the ledger: waits for entries, ends when it is closed and read to its end."""

    def __iter__(self) -> EntryIterator: ...
    def __aiter__(self) -> EntryIterator: ...

@final
class EntryIterator:
    """Entries of a ledger, in order; for ``for`` and ``async for``."""

    def __iter__(self) -> EntryIterator: ...
    def __next__(self) -> Entry: ...
    def __aiter__(self) -> EntryIterator: ...
    def __anext__(self) -> Future[Entry]: ...

@final
class Entry:
    """An entry as it was read."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def payload(self) -> bytes:
        """What was appended."""

    @property
    def last_add_confirmed(self) -> int | None:
        """The last confirmed entry that its writer knew when sending it."""

    @property
    def length_bytes(self) -> int:
        """Sum of the payloads up to and including this one."""
