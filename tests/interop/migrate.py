"""Coordinates the move of a cluster's metadata as a Pulsar broker does (PIP-454), by the protocol of ZooKeeper alone: the server at URL has
its tree at HOST:PORT, too.

usage: migrate.py HOST:PORT ROOT make PATH | flag PHASE URL | participants | below PATH | move URL HOST:PORT
"""
import json
import struct
import sys
import time

from zookeeper import ZooKeeper

NODE_EXISTS = -110
# Every right for everyone: the only access list of trees without security.
OPEN = struct.pack(">ii", 1, 31) + struct.pack(">i", 5) + b"world" + struct.pack(">i", 6) + b"anyone"


def text(value):
    return struct.pack(">i", len(value)) + value


class Tree(ZooKeeper):
    def _change(self, operation, body):
        self.xid += 1
        self._send(struct.pack(">ii", self.xid, operation) + body)
        while True:
            frame = self._frame()
            if self._event(frame) == self.xid:
                return struct.unpack_from(">i", frame, 12)[0]

    def make(self, path, value=b""):
        error = self._change(1, text(path.encode()) + text(value) + OPEN + struct.pack(">i", 0))
        if error not in (0, NODE_EXISTS):
            raise OSError(f"ZooKeeper answers {error} for {path}")
        return error == 0

    def set(self, path, value):
        if error := self._change(5, text(path.encode()) + text(value) + struct.pack(">i", -1)):
            raise OSError(f"ZooKeeper answers {error} for {path}")

    def is_ephemeral(self, path):
        error, body = self._ask(3, path, False)
        if error:
            return True  # It went meanwhile, so it was.
        return struct.unpack_from(">q", body, 44)[0] != 0


address, root, command, *rest = sys.argv[1:]
tree = Tree(address)
home = f"{root}/pulsar/migration-coordinator"
flag = f"{home}/migration"
participants = f"{home}/participants"


def set_phase(phase, url):
    value = json.dumps({"phase": phase, "targetUrl": url}).encode()
    for path in (f"{root}/pulsar", home):
        tree.make(path)
    if not tree.make(flag, value):
        tree.set(flag, value)


def copy(target, path):
    """Everything that is not ephemeral, but for the coordinator's own nodes and ZooKeeper's."""
    source = root + path
    if source in (home, "/zookeeper") or tree.is_ephemeral(source):
        return 0
    value = tree.data(source)
    if not target.make(path, value):
        target.set(path, value)
    return 1 + sum(copy(target, f"{path}/{name}") for name in tree.children(source))


if command == "make":
    tree.make(rest[0])
elif command == "flag":
    set_phase(*rest)
elif command == "participants":
    print(len(tree.children(participants)))
elif command == "below":
    print("\n".join(tree.children(rest[0])))
elif command == "move":
    url, target = rest[0], Tree(rest[1])
    set_phase("PREPARATION", url)
    until = time.monotonic() + 60
    while left := tree.children(participants):
        if time.monotonic() > until:
            set_phase("FAILED", url)
            sys.exit(f"not acknowledged within 60 s: {left}")
        time.sleep(0.1)
    set_phase("COPYING", url)
    copied = sum(copy(target, f"/{name}") for name in tree.children(root or "/"))
    set_phase("COMPLETED", url)
    print(f"{copied} nodes copied")
else:
    sys.exit(__doc__)
