"""What tests and benches ask ZooKeeper or the coordinator, without a client library: nodes, watches, and the counters of `mntr`."""
import select
import socket
import struct
import time


class ZooKeeper:
    """A session. `requests` counts what was sent, so that it can be taken off the server's counters."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 10)
        self.requests, self.xid, self.received, self.changed = 0, 0, b"", []
        self.sent_at = time.monotonic()
        self._send(struct.pack(">iqiqi16sb", 0, 0, 30000, 0, 16, bytes(16), 0))
        self._frame()

    def _send(self, body):
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        self.requests += 1
        self.sent_at = time.monotonic()

    def _whole(self):
        return len(self.received) >= 4 and len(self.received) >= 4 + struct.unpack_from(">i", self.received)[0]

    def _frame(self):
        while not self._whole():
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("ZooKeeper closed the connection")
            self.received += more
        end = 4 + struct.unpack_from(">i", self.received)[0]
        frame, self.received = self.received[4:end], self.received[end:]
        return frame

    def _event(self, frame):
        xid, = struct.unpack_from(">i", frame)
        if xid == -1:
            length, = struct.unpack_from(">i", frame, 24)
            self.changed.append((time.time(), frame[28 : 28 + length].decode()))
        return xid

    def _ask(self, operation, path, watch):
        self.xid += 1
        name = path.encode()
        self._send(struct.pack(">iii", self.xid, operation, len(name)) + name + bytes([watch]))
        while True:
            frame = self._frame()
            if self._event(frame) == self.xid:
                return struct.unpack_from(">i", frame, 12)[0], frame[16:]

    def exists(self, path, watch=False):
        error, _ = self._ask(3, path, watch)
        if error not in (0, -101):
            raise OSError(f"ZooKeeper answers {error} for {path}")
        return error == 0

    def data(self, path, watch=False):
        error, body = self._ask(4, path, watch)
        if error:
            raise OSError(f"ZooKeeper answers {error} for {path}")
        length, = struct.unpack_from(">i", body)
        return body[4 : 4 + max(length, 0)]

    def children(self, path):
        error, body = self._ask(8, path, False)
        if error == -101:
            return []  # It went meanwhile.
        if error:
            raise OSError(f"ZooKeeper answers {error} for {path}")
        count, = struct.unpack_from(">i", body)
        names, at = [], 4
        for _ in range(count):
            length, = struct.unpack_from(">i", body, at)
            names.append(body[at + 4 : at + 4 + length].decode())
            at += 4 + length
        return names

    def create_all(self, nodes):
        """Makes nodes, paths with values, open to everyone. Many requests are under way, and are made durable together."""
        text = lambda value: struct.pack(">i", len(value)) + value
        open_to_all = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
        under_way = 500
        for sent in range(len(nodes) + under_way):
            if sent < len(nodes):
                path, value = nodes[sent]
                self.xid += 1
                self._send(struct.pack(">ii", self.xid, 1) + text(path.encode()) + text(value) + open_to_all + struct.pack(">i", 0))
            if under_way <= sent:
                while self._event(frame := self._frame()) < 0:
                    pass
                if error := struct.unpack_from(">i", frame, 12)[0]:
                    raise OSError(f"ZooKeeper answers {error} for {nodes[sent - under_way][0]}")

    def changes(self, seconds):
        """Paths that changed, each with the time at which this was heard, as soon as there are any."""
        until = time.monotonic() + seconds
        while not self.changed or self._whole():
            if self._whole():
                self._event(self._frame())
                continue
            if time.monotonic() - self.sent_at > 5:
                self._send(struct.pack(">ii", -2, 11))
            left = until - time.monotonic()
            if left <= 0:
                break
            if select.select([self.socket], [], [], min(left, 1))[0]:
                more = self.socket.recv(1 << 16)
                if not more:
                    raise ConnectionError("ZooKeeper closed the connection")
                self.received += more
        changed, self.changed = self.changed, []
        return changed


def admin(address, word):
    """The answer to a command of four letters."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(word.encode())
        text = b""
        while more := connection.recv(1 << 16):
            text += more
    return text.decode()


def counters(address):
    """The numbers of `mntr`."""
    text, numbers = admin(address, "mntr"), {}
    for line in text.splitlines():
        name, _, value = line.partition("\t")
        try:
            numbers[name] = float(value)
        except ValueError:
            pass
    if "zk_packets_received" not in numbers:
        raise OSError(f"mntr of {address} says: {text[:200]!r}")
    return numbers


def ledger_path(ledger):
    """Where metadata of a ledger are in the layout `hierarchical`."""
    digits = f"{ledger:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
