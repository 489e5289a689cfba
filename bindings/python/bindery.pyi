"""The ledger client of Bindery, for Bindery and Apache BookKeeper bookies.

Each method that waits is there twice: ``name`` blocks, with the GIL released and Ctrl-C heeded, and ``name_async``
returns an asyncio future of the running event loop. Cancelling such a future drops the call; of an append that means
that the entry stays on its way. Entries get their ids in the order of the calls.

Ids are integers from 0. Times are seconds, sizes bytes. Objects may be used by several threads. After a fork, use
bindery in one of the two processes only (``multiprocessing`` with "spawn").
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Generator, Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, final

from typing_extensions import Buffer

__version__: str

__all__ = [
    "BinderyError",
    "BookieHealth",
    "BookieInfo",
    "BusyError",
    "Client",
    "ClosedError",
    "DiskWeights",
    "Entry",
    "EntryIterator",
    "FencedError",
    "Latencies",
    "LedgerInfo",
    "LedgerIterator",
    "LedgerReader",
    "LedgerWriter",
    "MetadataSecurity",
    "NoEntryError",
    "NoRoomError",
    "NotEnoughBookiesError",
    "NotForcedError",
    "NotFoundError",
    "RackAware",
    "RegionAware",
    "Tls",
    "TooLargeError",
    "UnavailableError",
    "WriteHealth",
    "WrongPasswordError",
    "__version__",
]

class BinderyError(Exception):
    """Whatever goes wrong with the cluster. All others derive from it."""

class NotFoundError(BinderyError):
    """There is no such ledger, or it was deleted."""

class WrongPasswordError(BinderyError):
    """The password is not the ledger's, or a bookie wants TLS, a certificate or a user that the client has not."""

class ClosedError(BinderyError):
    """The client or writer was closed by this program."""

class FencedError(BinderyError):
    """Another client closed or recovers the ledger: write on in a new one."""

class NotEnoughBookiesError(BinderyError):
    """Too few bookies for the ensemble or the ack quorum."""

class TooLargeError(BinderyError):
    """The entry is too large. The writer lives on."""

class NoRoomError(BinderyError):
    """There is no room for the entry at once: try again later, or wait with ``enqueue``. The writer lives on."""

class NotForcedError(BinderyError):
    """Not all bookies of the ensemble have synced, so nothing more is confirmed.

    After ``force`` the writer lives on, and may force again. After ``close`` and ``hand_over`` it is gone, and the
    ledger left open: ``open(ledger, recover=True)`` closes it, with what its bookies have.
    """

class BusyError(BinderyError):
    """Another writer has the ledger, or died having it: then ``open(ledger, recover=True)`` closes it."""

class NoEntryError(BinderyError):
    """The entry is behind the ledger's end, or on none of its bookies."""

class UnavailableError(BinderyError):
    """Bookies or the metadata store could not be asked: try again when they are back."""

@final
class Tls:
    """TLS for connections to bookies, 1.2 and 1.3. That to the metadata store: ``MetadataSecurity``."""

    def __new__(
        cls,
        trust: str | PathLike[str] | None = None,
        *,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        check_names: bool = True,
    ) -> Tls:
        """Checks the PEM files. A client reads them again for new connections when they have changed; files that cannot
        be used then leave it with those it had.

        ``trust``: the certificates that a bookie's must be signed by, those of the system without it; a bookie's must
        also be for the name or address that the bookie is registered with. ``certificate`` and ``key``, both or none:
        the client's own certificate, those that it is signed by behind it, and its private key, for bookies with
        ``tlsClientAuthentication``. ``check_names=False`` takes a certificate of any name for any bookie: anybody
        with one that is signed so can pass for a bookie, which is a ``RuntimeWarning``. Raises ``OSError`` for files that cannot be read, ``ValueError``
        for those that are something else.
        """

@final
class MetadataSecurity:
    """How the connection to the metadata store is protected: TLS, a login with SASL DIGEST-MD5, or both."""

    def __new__(
        cls,
        *,
        trust: str | PathLike[str] | None = None,
        trust_password: str | None = None,
        identity: str | PathLike[str] | None = None,
        identity_password: str | None = None,
        check_names: bool = True,
        user: str | None = None,
        password_file: str | PathLike[str] | None = None,
        jaas_file: str | PathLike[str] | None = None,
        jaas_section: str | None = None,
        restricted: bool = False,
    ) -> MetadataSecurity:
        """``trust``: speak TLS, with servers whose certificates are signed by these authorities and are for the name in the
        URI, which names the secure ports. ``identity``: a key and its certificates, for servers that ask for one. Either
        is one file, PEM, or PKCS12 or JKS with a password. ``check_names=False`` takes a certificate of any name, which
        is a ``RuntimeWarning``.

        ``user`` and ``password_file``, which has the password on its first line; or ``jaas_file``, with the section
        ``jaas_section`` (``Client``): who to log in as. ``restricted``: new nodes belong to that identity alone, as with
        ``zkEnableSecurity``; all processes of a cluster need the same one.

        Files are read for each connection, so that renewed ones count; one that cannot be used is an
        ``UnavailableError`` of the call that connects. Raises ``ValueError`` for arguments that do not go together.
        """

@final
class RackAware:
    """Each entry is on several racks, as far as there are several."""

    def __new__(cls, *, racks_min: int = 2, enforced: bool = False) -> RackAware:
        """``racks_min``: how many, at most as many as an entry has copies.

        ``enforced``: a ledger that cannot be spread so is not created, which is a ``NotEnoughBookiesError``; a bookie that
        failed is not replaced by one that breaks the spread; and bookies whose rack is not known are not used.
        """

@final
class RegionAware:
    """Each entry is on several regions, evenly, and inside them on several racks."""

    def __new__(
        cls,
        *,
        regions_min: int = 2,
        racks_min: int = 2,
        regions: Sequence[str] | None = None,
        enforced: bool = False,
    ) -> RegionAware:
        """``regions``: those to write to, all by default; otherwise as ``RackAware``."""

@final
class DiskWeights:
    """Bookies with more free disk space are chosen more often."""

    def __new__(cls, *, multiple_max: int | None = None, interval: float | None = None) -> DiskWeights:
        """``multiple_max`` (3): no bookie counts more than so many times the median, 0 for no bound; ``interval`` (300 s):
        how often bookies are asked.
        """

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
        frame_limit: int | None = None,
        metadata_patience: float | None = None,
        bookie_patience: float | None = None,
        placement: RackAware | RegionAware | Literal["random"] | None = None,
        rack_map: dict[str, str] | str | PathLike[str] | None = None,
        rack_script: str | PathLike[str] | None = None,
        location: str | None = None,
        disk_weights: DiskWeights | None = None,
        bookie_quarantine_time: float | None = None,
        metadata_security: MetadataSecurity | None = None,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
        mechanism: Literal["digest-md5", "plain"] = "digest-md5",
        auth_plugin: str | None = None,
        authenticate: Callable[[str, str, int], Generator[bytes, bytes, bytes | None]] | None = None,
    ) -> Client:
        """``metadata_uri``, for example ``zk://127.0.0.1:2181/ledgers``, else ``ValueError``.

        ``session_timeout`` (10 s) of the metadata store; ``request_timeout`` (5 s) of a bookie; ``memory_limit``
        (64 MiB) of entries in flight, and as much again of entries read ahead; ``slow_replica_bytes_max`` (half of
        that): what a bookie may hold up before it is replaced; ``explicit_lac_interval`` (0.1 s): how long a
        confirmed entry of an idle ledger may stay hidden from readers, 0 for ever; ``frame_limit``: the bookies'
        ``nettyMaxFrameSizeBytes``, of which an entry may have all but some 500 bytes (by default 5 MiB to write, and
        Pulsar's 5,253,120 bytes to read). A read of a larger entry fails by itself, with
        ``UnavailableError``. ``metadata_patience`` (30 s): how long a metadata store that is away is waited for;
        ``bookie_patience`` (0 s): how long a writer waits for bookies when fewer than its ack quorum can be written to.

        Where bookies stand says ``rack_map``, a dict of hosts and places, ``/rack`` or ``/region/rack``, or a file with such
        lines, which is read again while the client lives; or ``rack_script``, which is given hosts and prints their
        places. With either, entries are spread over racks (``RackAware()``) unless ``placement`` says otherwise; without,
        bookies are chosen at random. ``location``: where this process stands; of replicas that are about as fast those
        of its rack are read first, then those of its region. ``disk_weights``: choose by free space, too.
        ``bookie_quarantine_time`` (30 min): how long new ledgers do without a bookie that was found unhealthy, while there
        are others. Raises ``ValueError`` for what does not go together, ``OSError`` for a map that cannot be read.

        ``metadata_security``: TLS and a login for the metadata store; plain text and none by default.

        ``tls``: how to speak TLS with bookies, which are asked for it with START_TLS on each connection.

        ``user`` and ``password``, both or none: who this client proves to be to bookies, by SASL with this
        ``mechanism``, DIGEST-MD5 as Java's bookies want it, or PLAIN, which takes ``tls``. Not to be confused with the
        password of a ledger.

        ``auth_plugin`` and ``authenticate``, both or none, do that in another way: the name of the bookies'
        plugin, and a generator function that is called with bookie id, host and port for each new connection. What it
        yields is sent to the bookie, and what the bookie answers is the value of that ``yield``. It is through when it
        returns; bytes that it returns are sent, too, and their answer does not matter. A bookie without any plugin
        says so, which ends it before its time, as success: it proves who the client is, and not who the bookie is,
        which is TLS's to do. An exception closes the connection; its text is in the error of the call that needed
        the connection, if that fails. It runs on threads of this module, several connections at once, and must not
        wait for anything but its ``yield``: what it takes is not cut short by any timeout, and ``close`` waits for
        it. One that is given up on in a ``yield`` is closed later, on any thread. A client that its own
        ``authenticate`` refers to is not let go of before it is closed.
        """

    def create(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        """Creates a ledger with this process as its writer.

        Entries are spread over ``ensemble`` bookies, each stored on ``write_quorum`` of them and confirmed by
        ``ack_quorum``. Those that are not given are 3, 3 and 2, or as many as there are bookies and the others allow:
        ``LedgerWriter.quorum`` says what they are, and a ``UserWarning`` that one copy is all there is. ``custom``: free properties of the ledger; names that begin with ``bindery.`` are the client's
        own. Raises ``ValueError`` for sizes that are no quorum and for such names, ``NotEnoughBookiesError``,
        ``UnavailableError``.

        With ``deferred_sync`` bookies acknowledge entries before they sync them (BookKeeper's ``DEFERRED_SYNC``, in
        version 3 of its protocol only). ``append`` and ``drain`` then wait until entries are acknowledged: an ack
        quorum has them, perhaps in memory only. They are confirmed, so safe, and seen by readers, once ``force`` has
        returned; ``close`` forces, too. A bookie that fails cannot be replaced, and ends the writer, and so does one
        whose connection was lost before a force; the ledger is then for ``open`` with ``recover``. Nothing of this is
        kept with the ledger: it is this writer's.
        """

    def create_async(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> Future[LedgerWriter]:
        """``create`` for asyncio."""

    def create_handed_over(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
    ) -> int:
        """Creates an empty ledger for writers that follow one another, in this or other processes; its id.

        Each takes it with ``open_for_append``, and leaves it with ``LedgerWriter.hand_over``, the last one with
        ``close``. Arguments and errors as of ``create``; there is no deferred sync.
        """

    def create_handed_over_async(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: Literal["crc32c", "crc32", "mac", "dummy"] = "crc32c",
        password: bytes | bytearray | None = None,
        custom: dict[str, bytes] | None = None,
    ) -> Future[int]:
        """``create_handed_over`` for asyncio."""

    def open_for_append(self, ledger: int, *, password: bytes | bytearray | None = None) -> LedgerWriter:
        """Takes a ledger that was handed over, and goes on where the last writer stopped.

        Raises ``BusyError`` when another writer has it, or died having it; of several that try at once one gets it.
        ``FencedError`` when it was closed or is in recovery: write on in a new one. ``BinderyError`` when it belongs to
        the program that created it, or what it says of its writer is not understood. ``NotFoundError``,
        ``WrongPasswordError``, ``UnavailableError``. Interrupted, it may leave the ledger taken.
        """

    def open_for_append_async(
        self, ledger: int, *, password: bytes | bytearray | None = None
    ) -> Future[LedgerWriter]:
        """``open_for_append`` for asyncio. Cancelled, it may leave the ledger taken."""

    def take_over(self, ledger: int, *, password: bytes | bytearray | None = None) -> int:
        """Finds the ledger in which appends go on, if the writer of this one died having it; its id, for ``open_for_append``.

        A ledger of ``create_handed_over`` that has a writer is recovered and closed, and continued in a new ledger with the same
        sizes, digest, password and properties; one that was continued before is followed. A writer that lives after all is fenced.
        Raises ``FencedError`` when the last ledger was closed for good, and errors as of ``open_for_append``, ``open`` and ``create``.
        """

    def take_over_async(self, ledger: int, *, password: bytes | bytearray | None = None) -> Future[int]:
        """``take_over`` for asyncio."""

    def open(self, ledger: int, *, password: bytes | bytearray | None = None, recover: bool = False) -> LedgerReader:
        """Opens a ledger for reading, and leaves it to its writer.

        Of one that is not closed (``LedgerReader.is_closed``) entries can be read up to the last one that its bookies know
        to be confirmed, and followed: ``LedgerReader.tail``. They know it when ``LedgerWriter.drain`` returns, when the next
        entry comes, or ``explicit_lac_interval`` after the last one; readers of the writer's own client know it at once. When
        the writer is gone its last entries may stay out of sight until ``recover=True``. Raises ``NotFoundError``, ``WrongPasswordError``, ``UnavailableError``.

        ``recover=True`` is for a ledger whose writer is gone: one that is not closed is fenced, recovered and closed on
        the way, and what is then read is final. A writer that lives after all can write no more (``FencedError``).
        """

    def open_async(
        self, ledger: int, *, password: bytes | bytearray | None = None, recover: bool = False
    ) -> Future[LedgerReader]:
        """``open`` for asyncio."""

    def delete(self, ledger: int) -> None:
        """Deletes a ledger. Raises ``NotFoundError``, ``UnavailableError``."""

    def delete_async(self, ledger: int) -> Future[None]:
        """``delete`` for asyncio."""

    def metadata(self, ledger: int) -> LedgerInfo:
        """What the metadata store has of a ledger.

        Raises ``NotFoundError``, ``UnavailableError``, and ``BinderyError`` when its format is not known.
        """

    def metadata_async(self, ledger: int) -> Future[LedgerInfo]:
        """``metadata`` for asyncio."""

    def ledgers(self) -> LedgerIterator:
        """The ids of all ledgers, ascending: for ``for`` and ``async for``. It does not wait: iterating does."""

    def bookies(self) -> list[BookieInfo]:
        """All registered bookies, sorted by id. Raises ``UnavailableError``.

        One that changes between writable and read-only counts as read-only.
        """

    def bookies_async(self) -> Future[list[BookieInfo]]:
        """``bookies`` for asyncio."""

    def bookie_health(self) -> list[BookieHealth]:
        """How bookies do, sorted by id: those of ledgers that this client opened for reading, and those that failed it.

        It does not wait, and asks nobody. Raises ``ClosedError``.
        """

    def write_health(self) -> WriteHealth:
        """What became of this client's writes, and how they do now. It does not wait. Raises ``ClosedError``."""

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
    """The writer of a ledger. As a context manager it closes the ledger on exit, unless it was handed over."""

    @property
    def id(self) -> int:
        """The ledger."""

    @property
    def quorum(self) -> tuple[int, int, int]:
        """Ensemble, write quorum and ack quorum of the ledger."""

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that fits an entry."""

    @property
    def last_confirmed(self) -> int | None:
        """The last confirmed entry: it and all before it are safe."""

    @property
    def last_acknowledged(self) -> int | None:
        """The last entry that an ack quorum answered for, as for all before it.

        The same as ``last_confirmed``, but with deferred sync: then they are safe once they are forced.
        """

    def append(self, payload: Buffer) -> int:
        """Appends an entry and waits until it is confirmed, with deferred sync until it is acknowledged; its id.

        ``payload``: any contiguous bytes-like object, such as ``bytes``, ``bytearray``, ``memoryview`` or an array of numpy. It
        is read where it lies and may be changed when the call, or ``append_async``, has returned. ``BufferError`` for one
        that does not lie in one piece.

        Raises ``TooLargeError`` (the writer lives on), and when it can write no more ``FencedError``,
        ``NotEnoughBookiesError``, ``ClosedError`` or ``UnavailableError``: the message names the last confirmed entry.
        """

    def append_async(self, payload: Buffer) -> Future[int]:
        """``append`` for asyncio. The entry has its place in the ledger when this returns, unless room was lacking."""

    def enqueue(self, payload: Buffer) -> int:
        """Waits for room only, and sends an entry; its id. Errors as of ``append``; see ``drain``."""

    def enqueue_async(self, payload: Buffer) -> Future[int]:
        """``enqueue`` for asyncio. Cancelled before it was done, it has taken no id."""

    def try_enqueue(self, payload: Buffer) -> int:
        """``enqueue`` that refuses instead of waiting: sends an entry if there is room at once; its id.

        Raises ``NoRoomError`` when entries that bookies have not acknowledged use up the client's ``memory_limit``, and
        while an earlier call waits for room; other errors as of ``append``. For asyncio, too: it does not wait.
        """

    def drain(self) -> int | None:
        """Waits until every entry so far is confirmed and bookies know it; the last confirmed one. Errors as of ``append``.

        Whoever reads from then on sees them. With deferred sync acknowledged stands for confirmed, and readers see what was
        forced.
        """

    def drain_async(self) -> Future[int | None]:
        """``drain`` for asyncio."""

    def force(self) -> int | None:
        """Has all bookies of the ensemble sync what they have of the ledger; the last confirmed entry.

        With deferred sync that is what was acknowledged when the call began: ``drain`` first to cover what was
        enqueued. A ledger without confirms its entries by itself; there a force is for bookies that do not sync their
        journals. Raises ``NotForcedError``: force again, which succeeds or says that the writer is at its end; and
        other errors as of ``append``.
        """

    def force_async(self) -> Future[int | None]:
        """``force`` for asyncio. Cancelled, it confirms nothing, or all of it."""

    def hand_over(self) -> int | None:
        """Leaves the ledger open for the next ``open_for_append``; its last entry.

        Waits for the calls under way, drains, and with deferred sync forces, before it does. A ledger of ``create`` may
        be handed over, too. The writer is at its end, whatever is raised: ``FencedError`` when another client closed or
        recovers the ledger, ``NotForcedError``, other errors as of ``append``; ``ClosedError`` again and after
        ``close``.
        """

    def hand_over_async(self) -> Future[int | None]:
        """``hand_over`` for asyncio. Cancelled, it leaves the ledger handed over or taken, and the writer closed."""

    def close(self) -> None:
        """Waits for the calls under way, drains, closes the ledger for good. Again: does nothing, or raises ``ClosedError``
        with the reason when the ledger was not closed; at the end of a ``with`` it does nothing.

        With deferred sync it forces, too. The writer is at its end, whatever is raised: ``FencedError`` when another
        client closed the ledger with another end, ``NotForcedError``, other errors as of ``append``. After
        ``hand_over`` it does nothing.
        """

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
    """Reads a ledger. Iterating over it, with ``for`` or ``async for``, reads all that is confirmed.

    Of a ledger that is not closed bookies are asked for more before that ends; it may still be less than its writer had
    acknowledged: see ``Client.open``.
    """

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
        """Entries ``first`` to ``last``, both included, read ahead; without ``last``: all that are confirmed when it ends.

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
    """Entries of a ledger, in order; for ``for`` and ``async for``.

    A step that is cancelled, or given up after a time (``asyncio.wait_for``), takes no entry: the next step has it.
    """

    def __iter__(self) -> EntryIterator: ...
    def __next__(self) -> Entry: ...
    def __aiter__(self) -> EntryIterator: ...
    def __anext__(self) -> Awaitable[Entry]: ...

@final
class Entry:
    """An entry as it was read. ``memoryview(entry)`` is its payload.

    Equal entries have equal ids, payloads, lengths and last confirmed entries; entries can be hashed, pickled and copied.
    """

    def __new__(cls, id: int, payload: bytes, last_add_confirmed: int | None, length_bytes: int) -> Entry:
        """For tests of what handles entries: those of a ledger come from a ``LedgerReader``."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def payload(self) -> bytes:
        """What was appended."""

    @property
    def last_add_confirmed(self) -> int | None:
        """The last confirmed entry that its sender knew.

        Below the entry as its writer sent it; the entry or a later one in a copy made by BookKeeper's re-replication.
        """

    @property
    def length_bytes(self) -> int:
        """Sum of the payloads up to and including this one."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The payload, read-only."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class LedgerInfo:
    """A ledger as the metadata store has it. The password is not among it."""

    @property
    def id(self) -> int:
        """The ledger."""

    @property
    def state(self) -> Literal["open", "in_recovery", "closed"]:
        """``open``: it can grow; ``in_recovery``: a client decides where it ends; ``closed``: it never changes again."""

    @property
    def ensemble(self) -> int:
        """Number of bookies that entries are spread over."""

    @property
    def write_quorum(self) -> int:
        """Number of those that store an entry."""

    @property
    def ack_quorum(self) -> int:
        """Number of those that confirm it."""

    @property
    def digest(self) -> Literal["crc32c", "crc32", "mac", "dummy"] | None:
        """As ``Client.create`` has it; ``None`` of ledgers from before BookKeeper 4.0, whose metadata does not say."""

    @property
    def last_entry(self) -> int | None:
        """The last entry of a closed ledger; ``None`` of an empty one, and while it is not closed."""

    @property
    def length_bytes(self) -> int | None:
        """Sum of the payloads of a closed ledger; ``None`` while it is not closed."""

    @property
    def created(self) -> float:
        """When it was created, in seconds since the epoch, by the clock of the metadata store or of its creator."""

    @property
    def custom(self) -> dict[str, bytes]:
        """Free properties, a copy. ``bindery.writer`` is the client's own: who has a ledger that is handed over."""

    @property
    def segments(self) -> list[tuple[int, list[str]]]:
        """First entries, ascending, each with the ids of the bookies of the ensemble from there on. A copy."""

@final
class LedgerIterator:
    """Ids of ledgers, ascending; for ``for`` and ``async for``. One range of ids is read at a time.

    Ledgers created or deleted meanwhile may be there or not. Raises ``UnavailableError``: the next step then reads the
    same range again; ``ClosedError``.
    """

    def __iter__(self) -> LedgerIterator: ...
    def __next__(self) -> int: ...
    def __aiter__(self) -> LedgerIterator: ...
    def __anext__(self) -> Awaitable[int]: ...

@final
class BookieInfo:
    """A registered bookie."""

    @property
    def id(self) -> str:
        """Its id, as in ``LedgerInfo.segments``."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes; else it is read-only."""

    @property
    def endpoints(self) -> list[tuple[str, str]]:
        """Where it listens: names, such as ``bookie`` and ``httpserver``, each with ``host:port``. A copy.

        Empty when its registration cannot be read.
        """

@final
class BookieHealth:
    """One bookie, as a client sees it. Counts are since the client knows it."""

    @property
    def id(self) -> str:
        """The bookie, as ``BookieInfo.id``."""

    @property
    def state(self) -> Literal["healthy", "probation", "suspect", "unhealthy", "forgotten"]:
        """How it does.

        ``healthy``: it answers; ``suspect``: it failed lately, a probe will tell; ``unhealthy``: it does not answer
        probes; ``probation``: it answers them again, and gets a tenth of its share of reads; ``forgotten``: it is not
        registered any more.
        """

    @property
    def transitions(self) -> int:
        """How often that changed."""

    @property
    def is_avoided(self) -> bool:
        """Whether new ensembles avoid it: it is not healthy, or was found unhealthy lately."""

    @property
    def pending(self) -> int:
        """Reads under way, and those that still count after a timeout."""

    @property
    def is_blocked(self) -> bool:
        """Whether these are so many that other replicas are preferred."""

    @property
    def reads_sent(self) -> int:
        """Reads sent to it: also hedges, retries and what was not answered, but no probes."""

    @property
    def answered(self) -> int:
        """Reads answered."""

    @property
    def reads(self) -> Latencies:
        """Latencies of reads of one entry."""

    @property
    def batch_reads(self) -> Latencies:
        """Latencies of reads of runs of entries."""

    @property
    def timeouts(self) -> int:
        """Requests without an answer in time."""

    @property
    def unreachable(self) -> int:
        """Requests that found no connection, or lost it."""

    @property
    def errors(self) -> int:
        """Errors that it answered, and answers that made no sense."""

    @property
    def rejected(self) -> int:
        """Requests that it refused because of their number."""

    @property
    def reject_percent(self) -> int:
        """The share of reads, in per cent, that goes elsewhere because of these."""

    @property
    def missing_copies(self) -> int:
        """Entries that it should have and said it had not."""

    @property
    def probes_answered(self) -> int:
        """Probes answered."""

    @property
    def probes_failed(self) -> int:
        """Probes that were not."""

    @property
    def hedges_sent(self) -> int:
        """Hedges sent to it: reads sent to a second bookie because the first took long."""

    @property
    def hedges_won(self) -> int:
        """Hedges sent to it that were answered first."""

    @property
    def last_error(self) -> str | None:
        """Why it last could not be reached, or failed; None if it never did."""

@final
class WriteHealth:
    """Writes of a client. Counts are since it was made."""

    @property
    def writers(self) -> int:
        """Ledgers that are written now: neither closed, nor stopped by a failure."""

    @property
    def writers_short(self) -> int:
        """Those of them that go on without a replica until there is a bookie for it."""

    @property
    def writers_failed(self) -> int:
        """Writers that stopped by themselves: fenced, or too few bookies; not one that could still be closed."""

    @property
    def entries(self) -> int:
        """Entries acknowledged by their ack quorum, and so confirmed, but for deferred sync."""

    @property
    def latency(self) -> Latencies:
        """From the moment an entry got its id to this, of every eighth entry; ``count`` is of those."""

    @property
    def ensemble_changes(self) -> int:
        """Changes of ensembles: a bookie was replaced, left out since it failed, or is back."""

    @property
    def copies_missing(self) -> int:
        """Copies of confirmed entries that bookies lack and will not get from the writer; the ledger is marked for repair."""

    @property
    def ledgers_unmarked(self) -> int:
        """Ledgers with such copies that no mark names: their writers try again, or could not make one before they ended."""

    @property
    def copies_filled(self) -> int:
        """Copies that came late: the bookie was away, and got them when it was back."""

    @property
    def placements_unmet(self) -> int:
        """Choices of bookies that could not be spread over racks or regions as asked; a repeated search counts again."""

@final
class Latencies:
    """Latencies of the last 5 to 10 s, in seconds; all 0 when nothing was answered."""

    @property
    def count(self) -> int:
        """Answers."""

    @property
    def mean(self) -> float:
        """Their mean."""

    @property
    def p50(self) -> float:
        """Half of them took no longer."""

    @property
    def p95(self) -> float:
        """95 of 100."""

    @property
    def p99(self) -> float:
        """99 of 100."""
