"""Payloads and entries as Python objects: buffers, comparison, pickling."""
import array
import asyncio
import copy
import inspect
import mmap
import os
import pickle
import unittest

import bindery
from test_writers import stopped_server

URI = os.environ["BINDERY_METADATA"]


class Data(unittest.TestCase):
    def setUp(self):
        self.client = bindery.Client(URI)
        self.addCleanup(self.client.close)

    def test_whatever_lies_in_one_piece_is_appended(self):
        with mmap.mmap(-1, 5) as mapped:
            mapped[:] = b"mmap!"
            buffers = [
                b"bytes",
                bytearray(b"bytearray"),
                memoryview(b"memoryview")[3:7],
                array.array("d", [1.5, 2.5]),
                memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3)),
                memoryview(b""),
                mapped,
                bindery.Entry(1, b"an entry", None, 8),
            ]
            expected = [bytes(memoryview(buffer)) for buffer in buffers]
            with self.client.create() as writer:
                for method in (writer.enqueue, writer.append, writer.try_enqueue):
                    for buffer in buffers:
                        method(buffer)

                async def append_all():
                    for method in (writer.append_async, writer.enqueue_async):
                        await asyncio.gather(*(method(buffer) for buffer in buffers))

                asyncio.run(append_all())
                with self.assertRaisesRegex(BufferError, "not lie in one piece"):
                    writer.append(memoryview(b"every second")[::2])
                with self.assertRaisesRegex(TypeError, "bytes-like object is required, not 'str'"):
                    writer.append("text")
            # Nothing refers to them any more.
            buffers[1].extend(b"resized")
            del buffers
        self.assertEqual([entry.payload for entry in self.client.open(writer.id)], expected * 5)

    def test_a_buffer_may_be_changed_when_the_call_has_returned(self):
        """Also while its entry waits for room."""

        async def append_all():
            async with bindery.Client(URI, memory_limit=100_000) as client:
                async with await client.create_async() as writer:
                    buffer, calls = bytearray(10_000), []
                    # Nothing is acknowledged meanwhile, so there is room for some only.
                    with stopped_server():
                        for i in range(100):
                            buffer[:] = bytes([i]) * 10_000
                            calls.append((writer.append_async, writer.enqueue_async)[i % 2](buffer))
                            buffer[:] = b"x" * 10_000
                        self.assertFalse(calls[-1].done())
                    self.assertEqual(await asyncio.gather(*calls), list(range(100)))
                return writer.id

        ledger = asyncio.run(append_all())
        for i, entry in enumerate(self.client.open(ledger)):
            self.assertEqual(entry.payload, bytes([i]) * 10_000)
        self.assertEqual(i, 99)

    def test_entries_are_views_of_their_payloads(self):
        with self.client.create() as writer:
            writer.append(b"payload")
        entry = self.client.open(writer.id).read_entry(0)
        with memoryview(entry) as view:
            self.assertEqual((view.readonly, bytes(view), view.nbytes), (True, b"payload", 7))
        part = memoryview(entry)[3:]
        del entry
        self.assertEqual(bytes(part), b"load", "it outlives its entry")
        with self.assertRaises(TypeError):
            part[0] = 0

    def test_entries_are_compared_hashed_copied_and_pickled(self):
        with self.client.create() as writer:
            for payload in (b"one", b"two", b"one"):
                writer.append(payload)
        entries = list(self.client.open(writer.id))
        again = list(self.client.open(writer.id))
        self.assertEqual(entries, again)
        self.assertIsNot(entries[0], again[0])
        self.assertEqual(len({*entries, *again}), 3)
        self.assertNotEqual(entries[0], entries[2], "ids differ")
        self.assertFalse(entries[0] == b"one" or entries[0] == 0)
        with self.assertRaises(TypeError):
            entries[0] < entries[1]
        one = entries[0]
        self.assertEqual(one, bindery.Entry(0, b"one", None, 3))
        for other in (
            bindery.Entry(1, b"one", None, 3),
            bindery.Entry(0, b"two", None, 3),
            bindery.Entry(0, b"one", 0, 3),
            bindery.Entry(0, b"one", None, 4),
        ):
            self.assertNotEqual(one, other)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            self.assertEqual(pickle.loads(pickle.dumps(entries, protocol)), entries)
        self.assertEqual((copy.copy(one), copy.deepcopy(entries)), (one, entries))

    def test_exceptions_are_pickled(self):
        with self.assertRaises(bindery.NotFoundError) as raised:
            self.client.open(999999999)
        classes = [kind for _, kind in inspect.getmembers(bindery, inspect.isclass) if issubclass(kind, Exception)]
        self.assertGreater(len(classes), 10)
        for error in [raised.exception] + [kind("why") for kind in classes]:
            found = pickle.loads(pickle.dumps(error))
            self.assertIs(type(found), type(error))
            self.assertEqual(found.args, error.args)

    def test_the_version(self):
        self.assertRegex(bindery.__version__, r"^\d+\.\d+\.\d+")
        self.assertIn("__version__", bindery.__all__)


if __name__ == "__main__":
    unittest.main()
