"""python hello.py [METADATA_URI]: writes a ledger to the cluster of `bindery standalone` and reads it."""
import sys

import bindery

uri = sys.argv[1] if len(sys.argv) > 1 else "zk://127.0.0.1:2181/ledgers"
with bindery.Client(uri) as client:
    with client.create() as writer:
        for line in (b"one", b"two"):
            writer.enqueue(line)  # waits for room only
        print("confirmed up to entry", writer.append(b"three"))
    for entry in client.open(writer.id):
        print(entry.id, entry.payload.decode())
