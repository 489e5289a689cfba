"""Deferred sync, entries that are refused without room, and writers that follow one another. Started by ../test."""
import asyncio
import concurrent.futures
import contextlib
import os
import signal
import time
import unittest

import bindery

URI = os.environ["BINDERY_METADATA"]
SERVER = int(os.environ["BINDERY_SERVER_PID"])
# What does not come by then does not come at all.
LIMIT_SECONDS = 60


@contextlib.contextmanager
def stopped_server():
    """For a moment: the sessions of other clients outlast it."""
    os.kill(SERVER, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(SERVER, signal.SIGCONT)


class Writers(unittest.TestCase):
    def setUp(self):
        self.client = bindery.Client(URI)
        self.addCleanup(self.client.close)

    def other_client(self, **options):
        client = bindery.Client(URI, **options)
        self.addCleanup(client.close)
        return client

    def read_all(self, ledger, **options):
        return [entry.payload for entry in self.client.open(ledger, **options)]


class DeferredSync(Writers):
    def test_entries_are_confirmed_by_a_force(self):
        writer = self.client.create(deferred_sync=True)
        self.assertIsNone(writer.last_acknowledged)
        self.assertIsNone(writer.force(), "there is nothing")
        self.assertEqual([writer.enqueue(b"x") for _ in range(100)], list(range(100)))
        self.assertEqual(writer.append(b"last"), 100)
        self.assertEqual((writer.last_acknowledged, writer.last_confirmed), (100, None))
        self.assertEqual(writer.drain(), 100, "drain waits until it is acknowledged")
        reader = self.other_client().open(writer.id, recover=False)
        self.assertIsNone(reader.refresh())
        self.assertEqual(writer.force(), 100)
        self.assertEqual((writer.last_acknowledged, writer.last_confirmed), (100, 100))
        entries = reader.tail()
        self.assertEqual([next(entries).payload for _ in range(101)], [b"x"] * 100 + [b"last"])
        writer.enqueue(b"behind the force")
        writer.close()
        self.assertEqual(writer.last_confirmed, 101, "a close forces")
        self.assertEqual(next(entries).payload, b"behind the force")

    def test_without_it_what_is_acknowledged_is_confirmed(self):
        with self.client.create() as writer:
            writer.append(b"x")
            self.assertEqual((writer.last_acknowledged, writer.last_confirmed), (0, 0))
            self.assertEqual(writer.force(), 0)
        with self.assertRaisesRegex(bindery.ClosedError, "this writer was closed"):
            writer.force()
        with self.assertRaises(TypeError):
            self.client.create(deferred_sync="yes")

    def test_a_force_without_an_answer_may_be_repeated(self):
        with self.other_client(request_timeout=2).create() as writer:
            writer.append(b"x")
            with stopped_server(), self.assertRaisesRegex(bindery.NotForcedError, "Force it again when they answer"):
                writer.force()
            deadline = time.monotonic() + LIMIT_SECONDS
            while True:
                try:
                    self.assertEqual(writer.force(), 0)
                    break
                except bindery.NotForcedError:
                    # Connections that are made anew.
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)
            self.assertEqual(writer.append(b"y"), 1)

    def test_a_close_that_cannot_force_leaves_the_ledger_to_recovery(self):
        writer = self.other_client(request_timeout=2).create(deferred_sync=True)
        writer.append(b"x")
        with stopped_server(), self.assertRaisesRegex(bindery.NotForcedError, "open it with recovery"):
            writer.close()
        self.assertEqual((writer.last_acknowledged, writer.last_confirmed), (0, None))
        self.assertEqual(self.client.metadata(writer.id).state, "open")
        self.assertEqual(self.read_all(writer.id, recover=True), [b"x"])

    def test_a_bookie_that_fails_ends_the_writer(self):
        writer = self.other_client(request_timeout=2).create(deferred_sync=True)
        writer.append(b"x")
        with stopped_server(), self.assertRaisesRegex(bindery.UnavailableError, "none can be replaced"):
            writer.append(b"y")
        for call in (lambda: writer.append(b"z"), writer.force, writer.hand_over):
            with self.assertRaisesRegex(bindery.UnavailableError, "none can be replaced"):
                call()
        self.assertEqual(self.read_all(writer.id, recover=True)[0], b"x")

    def test_a_fenced_writer(self):
        writer = self.client.create(deferred_sync=True)
        writer.append(b"x")
        self.assertEqual(self.read_all(writer.id, recover=True), [b"x"], "recovery keeps what bookies have")
        with self.assertRaises(bindery.FencedError):
            writer.append(b"y")
        with self.assertRaises(bindery.FencedError):
            writer.force()


class TryEnqueue(Writers):
    def test_it_refuses_instead_of_waiting(self):
        writer = self.other_client(memory_limit=100_000).create()
        sent = 0
        with self.assertRaisesRegex(bindery.NoRoomError, "no room for an entry of 10000 bytes"):
            while True:
                self.assertEqual(writer.try_enqueue(bytes(10_000)), sent)
                sent += 1
        self.assertGreater(sent, 0)
        self.assertEqual(writer.drain(), sent - 1)
        self.assertEqual(writer.append(bytearray(b"there is room again")), sent)
        with self.assertRaises(bindery.TooLargeError):
            writer.try_enqueue(bytes(writer.payload_bytes_max + 1))
        with self.assertRaises(TypeError):
            writer.try_enqueue("text")
        writer.close()
        with self.assertRaises(bindery.ClosedError):
            writer.try_enqueue(b"x")
        self.assertEqual(self.client.open(writer.id).last_add_confirmed, sent)


class HandOver(Writers):
    def test_writers_follow_one_another(self):
        ledger = self.client.create_handed_over(password=b"secret", custom={"owner": b"test"}, digest="crc32")
        info = self.client.metadata(ledger)
        self.assertEqual((info.state, info.digest), ("open", "crc32"))
        self.assertEqual(info.custom, {"owner": b"test", "bindery.writer": b"idle next=0 length=0"})
        payloads = []
        for turn in range(3):
            client = self.other_client()
            with self.assertRaisesRegex(bindery.WrongPasswordError, "wrong password"):
                client.open_for_append(ledger, password=b"wrong")
            writer = client.open_for_append(ledger, password=b"secret")
            self.assertEqual((writer.id, writer.last_confirmed), (ledger, len(payloads) - 1 if payloads else None))
            with self.assertRaisesRegex(bindery.BusyError, rf"has a writer.*client\.open\({ledger}, recover=True\)"):
                self.client.open_for_append(ledger, password=b"secret")
            for i in range(20 * turn):
                payloads.append(b"%d of %d" % (i, turn))
                self.assertEqual(writer.enqueue(payloads[-1]), len(payloads) - 1)
            self.assertEqual(writer.hand_over(), len(payloads) - 1 if payloads else None)
            reader = self.client.open(ledger, password=b"secret", recover=False)
            self.assertEqual([entry.payload for entry in reader], payloads, "all of an idle ledger is confirmed")
        with self.client.open_for_append(ledger, password=b"secret") as writer:
            payloads.append(b"last")
            writer.append(payloads[-1])
        self.assertEqual(self.read_all(ledger, password=b"secret"), payloads)
        with self.assertRaisesRegex(bindery.FencedError, "is closed: it ends with entry 60"):
            self.client.open_for_append(ledger, password=b"secret")

    def test_a_writer_that_handed_over_is_at_its_end(self):
        ledger = self.client.create_handed_over()
        with self.client.open_for_append(ledger) as writer:
            writer.append(b"x")
            self.assertEqual(writer.hand_over(), 0)
            for call in (lambda: writer.append(b"y"), writer.drain, writer.force, writer.hand_over):
                with self.assertRaisesRegex(bindery.ClosedError, "its ledger handed over"):
                    call()
        self.assertEqual(self.client.metadata(ledger).state, "open", "the end of the block has not closed it")
        writer.close()
        self.client.open_for_append(ledger).close()
        self.assertEqual(self.client.metadata(ledger).state, "closed")

    def test_ledgers_that_are_not_to_be_had(self):
        with self.assertRaisesRegex(bindery.NotFoundError, "ledger 999999999 does not exist"):
            self.client.open_for_append(999999999)
        with self.assertRaises(ValueError):
            self.client.open_for_append(-1)
        with self.client.create() as writer:
            with self.assertRaisesRegex(bindery.BinderyError, "belongs to the program that created it") as raised:
                self.client.open_for_append(writer.id)
            self.assertIs(raised.exception.__class__, bindery.BinderyError)
        for create in (self.client.create, self.client.create_handed_over):
            with self.assertRaisesRegex(ValueError, "used by the client itself"):
                create(custom={"bindery.writer": b"mine"})
        with self.assertRaises(TypeError):
            self.client.create_handed_over(deferred_sync=True)
        with self.assertRaisesRegex(bindery.NotEnoughBookiesError, "4 needed"):
            self.client.create_handed_over(ensemble=4)

    def test_the_ledger_of_a_writer_that_died_goes_on_in_another(self):
        ledger = self.client.create_handed_over(ack_quorum=1, password=b"p")
        writer = self.client.open_for_append(ledger, password=b"p")
        writer.append(b"one")
        with self.assertRaisesRegex(bindery.BusyError, f"client.take_over\\({ledger}\\)"):
            self.client.open_for_append(ledger, password=b"p")
        following = self.client.take_over(ledger, password=b"p")
        self.assertNotEqual(following, ledger)
        with self.assertRaises(bindery.FencedError):
            writer.append(b"late")
        with self.client.open_for_append(following, password=b"p") as writer:
            self.assertEqual((writer.append(b"two"), writer.quorum), (0, (3, 3, 1)))
        self.assertEqual([entry.payload for entry in self.client.open(ledger, password=b"p")], [b"one"])
        with self.assertRaisesRegex(bindery.FencedError, "is closed"):
            self.client.take_over(ledger, password=b"p")

    def test_a_ledger_of_create_is_handed_over_and_forced_before(self):
        writer = self.client.create(deferred_sync=True)
        writer.append(b"0")
        self.assertEqual(writer.hand_over(), 0)
        with self.client.open_for_append(writer.id) as second:
            self.assertEqual((second.last_confirmed, second.append(b"1"), second.last_confirmed), (0, 1, 1))
        self.assertEqual(self.read_all(writer.id), [b"0", b"1"])

    def test_of_several_that_try_at_once_one_gets_it(self):
        ledger = self.client.create_handed_over()
        clients = [self.other_client() for _ in range(6)]

        def attempt(client):
            try:
                return client.open_for_append(ledger)
            except bindery.BusyError:
                return None

        with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
            writers = [writer for writer in threads.map(attempt, clients) if writer is not None]
        self.assertEqual(len(writers), 1)
        self.assertEqual(writers[0].append(b"x"), 0)

    def test_a_writer_that_died_and_one_that_was_taken_for_dead(self):
        ledger = self.client.create_handed_over()
        writer = self.client.open_for_append(ledger)
        writer.append(b"x")
        self.assertEqual(self.read_all(ledger, recover=True), [b"x"])
        with self.assertRaises(bindery.FencedError):
            writer.append(b"y")
        with self.assertRaises(bindery.FencedError):
            writer.hand_over()
        with self.assertRaises(bindery.FencedError):
            self.client.open_for_append(ledger)

    def test_closed(self):
        ledger = self.client.create_handed_over()
        self.client.close()
        for call in (self.client.create_handed_over, lambda: self.client.open_for_append(ledger)):
            with self.assertRaisesRegex(bindery.ClosedError, "the client was closed"):
                call()


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = await bindery.Client(URI, memory_limit=100_000).__aenter__()

    async def asyncTearDown(self):
        await self.client.close_async()

    async def test_deferred_sync(self):
        async with await self.client.create_async(deferred_sync=True) as writer:
            self.assertEqual(await writer.append_async(b"x"), 0)
            self.assertIsNone(writer.last_confirmed)
            self.assertEqual(await writer.force_async(), 0)

    async def test_an_entry_passes_none_that_waits_for_room(self):
        async with await self.client.create_async() as writer:
            with stopped_server():
                appended = [writer.append_async(bytes(10_000)) for _ in range(50)]
                with self.assertRaises(bindery.NoRoomError):
                    writer.try_enqueue(b"small")
            self.assertEqual(await asyncio.gather(*appended), list(range(50)))
            self.assertEqual(writer.try_enqueue(b"small"), 50)

    async def test_a_hand_over_waits_for_the_calls_before_it_and_refuses_those_behind_it(self):
        ledger = await self.client.create_handed_over_async()
        writer = await self.client.open_for_append_async(ledger)
        with stopped_server():
            appended = [writer.append_async(bytes(10_000)) for _ in range(50)]
            handed_over = writer.hand_over_async()
            self.assertFalse(handed_over.done())
        for call in (lambda: writer.append_async(b"behind"), writer.hand_over_async):
            with self.assertRaisesRegex(bindery.ClosedError, "this writer was closed"):
                await call()
        self.assertEqual(await asyncio.gather(*appended), list(range(50)))
        self.assertEqual(await handed_over, 49)
        second = await self.client.open_for_append_async(ledger)
        with self.assertRaises(bindery.BusyError):
            await self.client.open_for_append_async(ledger)
        self.assertEqual(await second.append_async(b"x"), 50)
        await second.close_async()

    async def test_a_cancelled_hand_over_leaves_the_writer_closed_and_the_calls_before_it_alone(self):
        ledger = await self.client.create_handed_over_async()
        writer = await self.client.open_for_append_async(ledger)
        appended = [writer.append_async(bytes(10_000)) for _ in range(50)]
        handed_over = writer.hand_over_async()
        handed_over.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await handed_over
        with self.assertRaises(bindery.ClosedError):
            await writer.append_async(b"behind")
        self.assertEqual(await asyncio.gather(*appended), list(range(50)))
        try:
            second = await self.client.open_for_append_async(ledger)
        except bindery.BusyError:
            # It still names the writer that is gone.
            return
        # All was appended before the cancellation came through.
        self.assertEqual(await second.append_async(b"x"), 50)


if __name__ == "__main__":
    unittest.main()
