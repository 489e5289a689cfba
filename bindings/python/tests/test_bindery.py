"""Against the cluster of BINDERY_METADATA (three bookies), started by ../test."""
import asyncio
import os
import random
import subprocess
import sys
import threading
import unittest

import bindery

URI = os.environ["BINDERY_METADATA"]
# Loops that wait for another thread or process give up after this: far beyond what they need.
LIMIT_SECONDS = 60


def read_all(reader):
    return [entry.payload for entry in reader]


class Blocking(unittest.TestCase):
    def setUp(self):
        self.client = bindery.Client(URI)
        self.addCleanup(self.client.close)

    def test_round_trip(self):
        payloads = [b"", b"one", bytes(range(256)) * 400] + [b"%d" % i for i in range(1000)]
        with self.client.create(password=b"secret", custom={"owner": b"test"}, digest="mac") as writer:
            self.assertEqual([writer.enqueue(payload) for payload in payloads], list(range(len(payloads))))
            self.assertEqual(writer.drain(), len(payloads) - 1)
            self.assertEqual(writer.append(bytearray(b"array")), len(payloads))
            self.assertEqual(writer.last_confirmed, len(payloads))
        payloads.append(b"array")
        reader = self.client.open(writer.id, password=b"secret")
        self.assertEqual((reader.id, reader.is_closed), (writer.id, True))
        self.assertEqual(reader.last_add_confirmed, len(payloads) - 1)
        self.assertEqual(reader.length_bytes, sum(map(len, payloads)))
        self.assertEqual(read_all(reader), payloads)
        self.assertEqual([entry.id for entry in reader.read(3, 5)], [3, 4, 5])
        entry = reader.read_entry(1)
        self.assertEqual((entry.id, entry.payload, entry.length_bytes), (1, b"one", 3))
        self.assertIs(entry.payload, entry.payload)

    def test_an_empty_ledger(self):
        self.client.create().close()
        writer = self.client.create()
        self.assertIsNone(writer.drain())
        writer.close()
        writer.close()
        reader = self.client.open(writer.id)
        self.assertIsNone(reader.last_add_confirmed)
        self.assertEqual(read_all(reader), [])

    def test_sizes_that_are_not_given_are_filled_in(self):
        for sizes, quorum in (
            ({}, (3, 3, 2)),
            ({"ensemble": 3}, (3, 3, 2)),
            ({"ensemble": 1}, (1, 1, 1)),
            ({"write_quorum": 2}, (2, 2, 2)),
            ({"ack_quorum": 1}, (3, 3, 1)),
            ({"ensemble": 3, "write_quorum": 2, "ack_quorum": 1}, (3, 2, 1)),
        ):
            with self.client.create(**sizes) as writer:
                writer.append(b"x")
            self.assertEqual(writer.quorum, quorum, sizes)
            info = self.client.metadata(self.client.create_handed_over(**sizes))
            self.assertEqual((info.ensemble, info.write_quorum, info.ack_quorum), quorum, sizes)

    def test_what_is_confirmed_is_read_without_recovery(self):
        # So long that nothing is announced by itself.
        other = bindery.Client(URI, explicit_lac_interval=3600)
        self.addCleanup(other.close)
        writer = other.create()
        early = self.client.open(writer.id)
        self.assertEqual(read_all(early), [])
        for i in range(1000):
            writer.enqueue(b"%d" % i)
        self.assertEqual(writer.drain(), 999)
        payloads = [b"%d" % i for i in range(1000)]
        self.assertEqual(read_all(self.client.open(writer.id)), payloads)
        self.assertEqual(read_all(early), payloads, "iteration asks again")
        self.assertEqual([entry.id for entry in early.read(998)], [998, 999])
        self.assertEqual([entry.id for entry in early.read(1000)], [])
        writer.append(b"1000")
        self.assertEqual(len(read_all(other.open(writer.id))), 1001, "a client sees what its own writer confirmed")

    def test_an_open_ledger_is_followed(self):
        writer = self.client.create()
        writer.append(b"0")
        reader = self.client.open(writer.id, recover=False)
        self.assertFalse(reader.is_closed)
        self.assertIsNone(reader.length_bytes)
        got = []
        follower = threading.Thread(target=lambda: got.extend(entry.payload for entry in reader.tail()))
        follower.start()
        for i in range(1, 50):
            writer.append(b"%d" % i)
        writer.close()
        follower.join(LIMIT_SECONDS)
        self.assertEqual(got, [b"%d" % i for i in range(50)])
        self.assertEqual(reader.refresh(), 49)

    def test_errors_say_what_happened(self):
        with self.assertRaisesRegex(bindery.NotFoundError, "ledger 999999999 does not exist"):
            self.client.open(999999999)
        with self.assertRaisesRegex(bindery.NotFoundError, "does not exist"):
            self.client.delete(999999999)
        with self.client.create(password=b"right") as writer:
            writer.append(b"x")
        with self.assertRaisesRegex(bindery.WrongPasswordError, "wrong password"):
            self.client.open(writer.id, password=b"wrong")
        reader = self.client.open(writer.id, password=b"right")
        with self.assertRaisesRegex(bindery.NoEntryError, "has no entry 1: it ends with entry 0"):
            reader.read_entry(1)
        with self.assertRaises(bindery.NoEntryError):
            list(reader.read(0, 7))
        with self.assertRaisesRegex(bindery.NotEnoughBookiesError, "4 needed"):
            self.client.create(ensemble=4)
        self.client.delete(writer.id)
        with self.assertRaises(bindery.NotFoundError):
            self.client.open(writer.id, password=b"right")

    def test_a_fenced_writer(self):
        writer = self.client.create()
        writer.append(b"x")
        self.assertEqual(read_all(self.client.open(writer.id, recover=True)), [b"x"])
        with self.assertRaisesRegex(bindery.FencedError, "The last confirmed entry is 0"):
            writer.append(b"y")

    def test_opening_leaves_a_writer_alone_unless_it_is_asked_for_recovery(self):
        writer = self.client.create()
        writer.append(b"0")
        reader = self.client.open(writer.id)
        self.assertEqual((reader.is_closed, repr(reader)), (False, f"<bindery.LedgerReader of ledger {writer.id}, not closed>"))
        self.assertEqual(writer.append(b"1"), 1, "it lives on")
        self.assertEqual(next(reader.tail(1)).payload, b"1")
        for read in (lambda: reader.read_entry(2), lambda: list(reader.read(0, 2))):
            with self.assertRaisesRegex(bindery.NoEntryError, r"not closed it.*recover=True"):
                read()
        self.assertEqual(self.client.metadata(writer.id).state, "open")
        reader = self.client.open(writer.id, recover=True)
        self.assertEqual((read_all(reader), reader.is_closed), ([b"0", b"1"], True))
        with self.assertRaises(bindery.FencedError):
            writer.append(b"2")
        with self.assertRaises(bindery.NoEntryError) as beyond:
            reader.read_entry(2)
        self.assertNotIn("recover", str(beyond.exception), "its end is its end")

    def test_too_large(self):
        with self.client.create() as writer:
            with self.assertRaisesRegex(bindery.TooLargeError, "split it"):
                writer.append(bytes(writer.payload_bytes_max + 1))
            self.assertEqual(writer.append(bytes(writer.payload_bytes_max)), 0)

    def test_closed(self):
        writer, other = self.client.create(), self.client.create()
        writer.close()
        for call in (lambda: writer.append(b"x"), lambda: writer.enqueue(b"x"), writer.drain):
            with self.assertRaisesRegex(bindery.ClosedError, "this writer was closed"):
                call()
        self.client.close()
        self.client.close()
        for call in (self.client.create, lambda: self.client.open(writer.id), lambda: other.append(b"x")):
            with self.assertRaisesRegex(bindery.ClosedError, "the client was closed"):
                call()

    def test_bad_arguments(self):
        for call in (
            lambda: bindery.Client(7),
            lambda: self.client.create(password="text"),
            lambda: self.client.create(custom=[b"x"]),
            lambda: self.client.open("1"),
            lambda: bindery.Client(),
        ):
            with self.assertRaises(TypeError):
                call()
        with self.client.create() as writer:
            for payload in ("text", None, 5, [b"x"]):
                with self.assertRaises(TypeError):
                    writer.append(payload)
            self.assertEqual(writer.append(b"x"), 0, "none of them has taken an id")
        for call in (
            lambda: bindery.Client("http://nowhere"),
            lambda: bindery.Client(URI, request_timeout=-1),
            lambda: self.client.create(ensemble=1, write_quorum=2),
            lambda: self.client.create(ack_quorum=0),
            lambda: self.client.create(digest="md5"),
            lambda: self.client.open(-1),
        ):
            with self.assertRaises(ValueError):
                call()

    def test_no_cluster(self):
        with self.assertRaisesRegex(bindery.UnavailableError, "can be reached"):
            with bindery.Client("zk://127.0.0.1:1/ledgers", session_timeout=1):
                self.fail("there is nothing to connect to")

    def test_the_gil_is_free_while_a_call_waits(self):
        """A tail that waits in one thread is ended by this one: it could not be if that held the GIL."""
        writer = self.client.create()
        reader = self.client.open(writer.id, recover=False)
        is_waiting, got = threading.Event(), []

        def follow():
            is_waiting.set()
            got.extend(entry.payload for entry in reader.tail())

        follower = threading.Thread(target=follow)
        follower.start()
        self.assertTrue(is_waiting.wait(LIMIT_SECONDS))
        writer.append(b"from the other thread")
        writer.close()
        follower.join(LIMIT_SECONDS)
        self.assertEqual(got, [b"from the other thread"])

    def run_python(self, source):
        run = [sys.executable, "-c", "import bindery, os, signal, sys\nuri = sys.argv[1]\n" + source, URI]
        return subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_SECONDS)

    def test_ctrl_c_ends_a_call(self):
        done = self.run_python(
            # A shell starts what runs in the background with the signal ignored, and so was this process then.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import threading\n"
            "client = bindery.Client(uri)\n"
            "writer = client.create()\n"
            "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "try:\n    list(client.open(writer.id, recover=False).tail())\n"
            "except KeyboardInterrupt:\n    print('interrupted', writer.append(b'x'))\n"
        )
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("interrupted 0\n", "", 0))

    def test_exit_with_everything_left_open(self):
        done = self.run_python(
            "import asyncio\n"
            "client = bindery.Client(uri)\n"
            "writer = client.create()\n"
            "reader = client.open(writer.id, recover=False)\n"
            "async def main():\n    asyncio.ensure_future(reader.tail().__anext__()); [writer.append_async(b'x') for _ in range(100)]\n"
            "asyncio.run(main())\nprint('end')\n"
        )
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("end\n", "", 0))

    def test_a_forked_process_is_told(self):
        done = self.run_python(
            "client = bindery.Client(uri)\nclient.create().close()\nsys.stdout.flush()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n        client.create()\n"
            "    except RuntimeError as error:\n        print('refused' if 'fork' in str(error) else error)\n"
            "    sys.exit(0)\n"
            "_, status = os.waitpid(child, 0)\n"
            "client.create().close()\nprint('parent', status)\n"
        )
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("refused\nparent 0\n", "", 0))


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = await bindery.Client(URI).__aenter__()

    async def asyncTearDown(self):
        await self.client.close_async()

    async def test_round_trip(self):
        payloads = [b"%d" % i for i in range(2000)]
        async with await self.client.create_async() as writer:
            appended = [writer.append_async(payload) for payload in payloads]
            self.assertEqual(await asyncio.gather(*appended), list(range(2000)), "ids in the order of the calls")
            self.assertEqual(await writer.enqueue_async(b"last"), 2000)
            self.assertEqual(await writer.drain_async(), 2000)
        reader = await self.client.open_async(writer.id)
        self.assertEqual([entry.payload async for entry in reader], payloads + [b"last"])
        self.assertEqual((await reader.read_entry_async(7)).payload, b"7")
        self.assertEqual(await reader.refresh_async(), 2000)
        await self.client.delete_async(writer.id)
        with self.assertRaises(bindery.NotFoundError):
            await self.client.open_async(writer.id)

    async def test_order_without_room(self):
        """With room for a few entries only, later ones wait in line."""
        async with bindery.Client(URI, memory_limit=100_000) as client:
            async with await client.create_async() as writer:
                payloads = [b"%05d" % i * 2000 for i in range(300)]
                appended = [writer.append_async(payload) for payload in payloads]
                self.assertEqual(await asyncio.gather(*appended), list(range(300)))
            self.assertEqual([entry.payload async for entry in await client.open_async(writer.id)], payloads)

    async def test_the_frame_limit_refuses_single_entries(self):
        for limit in (-1, 1023, 1 << 31):
            with self.assertRaisesRegex(ValueError, "frame_limit is from 1024"):
                bindery.Client(URI, frame_limit=limit)
        async with await self.client.create_async() as writer:
            for payload in (b"small", bytes(50_000), b"last"):
                await writer.append_async(payload)
        async with bindery.Client(URI, frame_limit=20_000) as client:
            reader = await client.open_async(writer.id)
            with self.assertRaisesRegex(bindery.UnavailableError, "frame limit of 20000"):
                await reader.read_entry_async(1)
            self.assertEqual((await reader.read_entry_async(2)).payload, b"last")
            async with await client.create_async() as narrow:
                with self.assertRaises(bindery.TooLargeError):
                    await narrow.append_async(bytes(50_000))

    async def test_a_close_waits_for_the_calls_before_it_and_refuses_those_behind_it(self):
        """With room for a few entries only, most calls still wait for an id when the close begins."""
        async with bindery.Client(URI, memory_limit=100_000) as client:
            writer = await client.create_async()
            appended = [writer.append_async(bytes(10_000)) for _ in range(50)]
            closed = writer.close_async()
            self.assertFalse(closed.done())
            with self.assertRaisesRegex(bindery.ClosedError, "this writer was closed"):
                await writer.append_async(b"behind")
            self.assertEqual(await asyncio.gather(*appended), list(range(50)))
            await closed
            reader = await client.open_async(writer.id, recover=False)
            self.assertEqual((reader.is_closed, reader.last_add_confirmed), (True, 49))

    async def test_a_cancelled_close_leaves_the_writer_closed_and_the_calls_before_it_alone(self):
        async with bindery.Client(URI, memory_limit=100_000) as client:
            writer = await client.create_async()
            appended = [writer.append_async(bytes(10_000)) for _ in range(50)]
            closed = writer.close_async()
            closed.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await closed
            with self.assertRaisesRegex(bindery.ClosedError, "this writer was closed"):
                await writer.append_async(b"behind")
            self.assertEqual(await asyncio.gather(*appended), list(range(50)))

    async def test_the_loop_runs_while_a_call_waits(self):
        writer = await self.client.create_async()
        reader = await self.client.open_async(writer.id, recover=False)
        got = []

        async def follow():
            async for entry in reader.tail():
                got.append(entry.payload)

        following = asyncio.create_task(follow())
        for i in range(20):
            await writer.append_async(b"%d" % i)
        await writer.close_async()
        await asyncio.wait_for(following, LIMIT_SECONDS)
        self.assertEqual(got, [b"%d" % i for i in range(20)])

    async def test_cancelled(self):
        writer = await self.client.create_async()
        entries = (await self.client.open_async(writer.id, recover=False)).tail()
        waiting = asyncio.ensure_future(entries.__anext__())
        await asyncio.sleep(0.01)
        self.assertFalse(waiting.done())
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        # The cancelled call has taken no entry, and the iterator lives on.
        await writer.append_async(b"first")
        self.assertEqual((await entries.__anext__()).payload, b"first")
        # A cancelled append may or may not be in the ledger, its successor is, and nothing hangs.
        cancelled = writer.append_async(b"cancelled")
        cancelled.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await cancelled
        await writer.append_async(b"after")
        await writer.close_async()
        read = [entry.payload async for entry in await self.client.open_async(writer.id)]
        self.assertIn(read, ([b"first", b"after"], [b"first", b"cancelled", b"after"]))

    async def test_a_step_that_is_given_up_takes_nothing(self):
        writer = await self.client.create_async()
        entries = (await self.client.open_async(writer.id, recover=False)).tail()

        async def write():
            for i in range(500):
                await writer.append_async(b"%d" % i)
            await writer.close_async()

        writing, got, given_up, dice = asyncio.create_task(write()), [], 0, random.Random(1)
        while True:
            step = asyncio.ensure_future(entries.__anext__())
            for _ in range(dice.randrange(30)):
                await asyncio.sleep(0)
            if dice.random() < 0.8:
                step.cancel()
            try:
                got.append((await step).payload)
            except asyncio.CancelledError:
                given_up += 1
            except StopAsyncIteration:
                break
        await writing
        self.assertEqual(got, [b"%d" % i for i in range(500)])
        # On a busy machine entries come several at once, and few steps have to wait.
        self.assertGreater(given_up, 10)

    async def test_a_step_is_thrown_into_and_closed_as_a_coroutine_is(self):
        writer = await self.client.create_async()
        entries = (await self.client.open_async(writer.id, recover=False)).tail()
        step = entries.__anext__().__await__()
        self.assertTrue(asyncio.isfuture(step.send(None)))
        with self.assertRaisesRegex(ValueError, "why"):
            step.throw(ValueError("why"))
        step = entries.__anext__().__await__()
        waiting = next(step)
        step.close()
        self.assertTrue(waiting.cancelled())
        await writer.append_async(b"first")
        self.assertEqual((await entries.__anext__()).payload, b"first")
        await writer.close_async()
        with self.assertRaises(StopAsyncIteration):
            await entries.__anext__()

    async def test_errors(self):
        with self.assertRaisesRegex(bindery.NotFoundError, "ledger 999999999 does not exist"):
            await self.client.open_async(999999999)
        writer = await self.client.create_async(password=b"right")
        await writer.close_async()
        with self.assertRaises(bindery.WrongPasswordError):
            await self.client.open_async(writer.id, password=b"wrong")
        with self.assertRaises(bindery.ClosedError):
            await writer.append_async(b"x")
        with self.assertRaises(TypeError):
            writer.append_async("text")
        with self.assertRaises(bindery.UnavailableError):
            async with bindery.Client("zk://127.0.0.1:1/ledgers", session_timeout=1):
                self.fail("there is nothing to connect to")


class WithoutLoop(unittest.TestCase):
    def test_a_call_for_asyncio_needs_a_loop(self):
        with bindery.Client(URI) as client, client.create() as writer:
            with self.assertRaisesRegex(RuntimeError, "no running event loop"):
                writer.append_async(b"x")
            self.assertEqual(writer.append(b"y"), 0, "the refused call has taken no id")

    def test_a_loop_that_ends_first_harms_nobody(self):
        with bindery.Client(URI) as client, client.create() as writer:

            async def leave():
                return [writer.append_async(b"%d" % i) for i in range(500)]

            asyncio.run(leave())
            self.assertEqual(writer.append(b"last"), 500)


if __name__ == "__main__":
    unittest.main()
