"""What the client tells of ledgers and bookies. Against the cluster of BINDERY_METADATA (three bookies), started by ../test."""
import os
import socket
import threading
import time
import unittest

import bindery

URI = os.environ["BINDERY_METADATA"]


class Blocking(unittest.TestCase):
    def setUp(self):
        self.client = bindery.Client(URI)
        self.addCleanup(self.client.close)

    def test_metadata(self):
        custom = {"owner": b"test", "bytes": bytes(range(256))}
        before = time.time()
        writer = self.client.create(
            ensemble=3, write_quorum=2, ack_quorum=1, digest="mac", password=b"a secret", custom=custom
        )
        info = self.client.metadata(writer.id)
        self.assertEqual((info.id, info.state, info.digest), (writer.id, "open", "mac"))
        self.assertEqual((info.ensemble, info.write_quorum, info.ack_quorum), (3, 2, 1))
        self.assertEqual((info.last_entry, info.length_bytes, info.custom), (None, None, custom))
        # To the millisecond, so it may look older.
        self.assertTrue(before - 0.001 <= info.created <= time.time(), (before, info.created))
        [(first, bookies)] = info.segments
        self.assertEqual((first, sorted(bookies)), (0, [bookie.id for bookie in self.client.bookies()]))
        writer.append(b"12345")
        writer.append(b"678")
        writer.close()
        closed = self.client.metadata(writer.id)
        self.assertEqual((closed.state, closed.last_entry, closed.length_bytes), ("closed", 1, 8))
        self.assertEqual((closed.segments, closed.created), (info.segments, info.created))
        self.assertEqual(info.state, "open", "what was read stays as it is")
        self.assertEqual(repr(closed), f"<bindery.LedgerInfo of ledger {writer.id}, closed>")

    def test_metadata_of_an_empty_ledger_and_of_every_digest(self):
        for digest in ("crc32c", "crc32", "mac", "dummy"):
            with self.client.create(digest=digest) as writer:
                pass
            info = self.client.metadata(writer.id)
            self.assertEqual((info.digest, info.last_entry, info.length_bytes), (digest, None, 0))

    def test_what_is_told_cannot_be_changed(self):
        with self.client.create(custom={"a": b"b"}) as writer:
            info = self.client.metadata(writer.id)
        self.client.open(writer.id)
        for told in (info, self.client.bookies()[0], self.client.bookie_health()[0]):
            with self.assertRaises(AttributeError):
                told.id = 5
        info.custom.clear()
        info.segments.clear()
        self.assertEqual((info.custom, len(info.segments)), ({"a": b"b"}, 1))

    def test_ledgers(self):
        made = []
        for _ in range(5):
            writer = self.client.create()
            writer.close()
            made.append(writer.id)
        listed = list(self.client.ledgers())
        self.assertEqual(listed, sorted(set(listed)))
        self.assertLessEqual(set(made), set(listed))
        self.client.delete(made[2])
        self.assertNotIn(made[2], list(self.client.ledgers()))
        ledgers = self.client.ledgers()
        self.assertIs(iter(ledgers), ledgers)
        for ledger in ledgers:
            break
        self.assertEqual([ledger, *ledgers], list(self.client.ledgers()), "it goes on where it was left")
        self.assertEqual(list(ledgers), [], "it has ended")

    def test_threads_share_an_iterator(self):
        for _ in range(20):
            self.client.create().close()
        ledgers, got = self.client.ledgers(), []
        threads = [threading.Thread(target=lambda: got.extend(ledgers)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(got), list(self.client.ledgers()))

    def test_bookies(self):
        bookies = self.client.bookies()
        self.assertEqual([bookie.is_writable for bookie in bookies], [True] * 3)
        self.assertEqual([bookie.id for bookie in bookies], sorted({bookie.id for bookie in bookies}))
        for bookie in bookies:
            endpoints = dict(bookie.endpoints)
            self.assertEqual(len(endpoints), len(bookie.endpoints))
            host, port = endpoints["bookie"].rsplit(":", 1)
            socket.create_connection((host, int(port))).close()
            self.assertEqual(repr(bookie), f"<bindery.BookieInfo of {bookie.id}, writable>")

    def test_bookie_health(self):
        self.assertEqual(self.client.bookie_health(), [], "it is not connected")
        with self.client.create() as writer:
            for i in range(200):
                writer.enqueue(b"%d" % i)
        reader = self.client.open(writer.id)
        for i in range(200):
            reader.read_entry(i)
        self.assertEqual(len(list(reader)), 200)
        health = self.client.bookie_health()
        self.assertEqual([bookie.id for bookie in health], [bookie.id for bookie in self.client.bookies()])
        for bookie in health:
            self.assertEqual((bookie.state, bookie.is_avoided, bookie.is_blocked), ("healthy", False, False))
            self.assertEqual((bookie.missing_copies, bookie.rejected, bookie.reject_percent), (0, 0, 0))
            self.assertGreaterEqual(bookie.reads_sent, bookie.answered)
            for latencies in (bookie.reads, bookie.batch_reads):
                self.assertTrue(0 <= latencies.p50 <= latencies.p95 <= latencies.p99 < 60, latencies)
                self.assertEqual(latencies.mean > 0, latencies.count > 0, latencies)
        self.assertGreaterEqual(sum(bookie.answered for bookie in health), 200)
        self.assertGreaterEqual(sum(bookie.reads.count for bookie in health), 200)

    def test_write_health(self):
        self.assertEqual(self.client.write_health().writers, 0, "it is not connected")
        with self.client.create() as writer:
            for i in range(80):
                writer.enqueue(b"%d" % i)
            writer.drain()
            health = self.client.write_health()
            self.assertEqual((health.writers, health.writers_short, health.entries), (1, 0, 80))
            self.assertEqual(repr(health), "<bindery.WriteHealth of 1 writers, 0 short>")
            self.assertTrue(1 <= health.latency.count <= 10 and 0 < health.latency.p50 <= health.latency.p99 < 60, health.latency)
            self.client.open(writer.id, recover=True)
            with self.assertRaises(bindery.FencedError):
                writer.append(b"no more")
            health = self.client.write_health()
            self.assertEqual((health.writers, health.writers_failed), (0, 1))
            with self.assertRaises(bindery.FencedError):
                writer.close()
            with self.assertRaisesRegex(bindery.ClosedError, "was not closed: ledger .* can no longer be written"):
                writer.close()
        self.assertEqual((health.ensemble_changes, health.placements_unmet), (0, 0))
        self.assertEqual((health.copies_filled, health.ledgers_unmarked), (0, 0))

    def test_errors(self):
        with self.assertRaisesRegex(bindery.NotFoundError, "ledger 999999999 does not exist"):
            self.client.metadata(999999999)
        with self.assertRaisesRegex(ValueError, "-1 is no ledger id"):
            self.client.metadata(-1)
        ledgers, begun = self.client.ledgers(), self.client.ledgers()
        self.client.create().close()
        next(begun)
        self.client.close()
        for call in (
            lambda: self.client.metadata(0),
            lambda: next(ledgers),
            # What it has read is still there.
            lambda: list(begun),
            self.client.bookies,
            self.client.bookie_health,
            self.client.write_health,
        ):
            with self.assertRaisesRegex(bindery.ClosedError, "the client was closed"):
                call()
        nowhere = bindery.Client("zk://127.0.0.1:1/ledgers", session_timeout=1)
        for call in (lambda: nowhere.metadata(0), lambda: next(nowhere.ledgers()), nowhere.bookies):
            with self.assertRaisesRegex(bindery.UnavailableError, "can be reached"):
                call()


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def test_all_of_it(self):
        async with bindery.Client(URI) as client:
            writer = await client.create_async(custom={"a": b"b"})
            await writer.close_async()
            info = await client.metadata_async(writer.id)
            self.assertEqual((info.id, info.state, info.custom), (writer.id, "closed", {"a": b"b"}))
            self.assertEqual(len(await client.bookies_async()), 3)
            listed = [ledger async for ledger in client.ledgers()]
            self.assertEqual(listed, list(client.ledgers()))
            self.assertIn(writer.id, listed)
            with self.assertRaises(bindery.NotFoundError):
                await client.metadata_async(999999999)


if __name__ == "__main__":
    unittest.main()
