"""python hello_async.py [METADATA_URI]: the same with asyncio."""
import asyncio
import sys

import bindery


async def main(uri):
    async with bindery.Client(uri) as client:
        async with await client.create_async() as writer:
            ids = await asyncio.gather(*(writer.append_async(line) for line in (b"one", b"two", b"three")))
        print("confirmed up to entry", ids[-1])
        async for entry in await client.open_async(writer.id):
            print(entry.id, entry.payload.decode())


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "zk://127.0.0.1:2181/ledgers"))
