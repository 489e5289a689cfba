"""TLS and authentication, with the Java bookie of BINDERY_LOCKED_METADATA, started by ../test.

Its certificate and those it asks clients for are signed by authority.pem of BINDERY_CERTIFICATES; its plugin is
peer.SecretAuth, with the secret of the file BINDERY_SECRET.
"""
import asyncio
import hashlib
import hmac
import os
import pathlib
import tempfile
import threading
import unittest

import bindery

URI = os.environ["BINDERY_LOCKED_METADATA"]
CERTIFICATES = pathlib.Path(os.environ["BINDERY_CERTIFICATES"])
SECRET = pathlib.Path(os.environ["BINDERY_SECRET"]).read_bytes()
PLUGIN = "peer.SecretAuth"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def prove(secret):
    def authenticate(bookie, host, port):
        challenge = yield b"hello"
        answer = yield hmac.new(secret, challenge, hashlib.sha1).digest()
        if answer != b"welcome":
            raise PermissionError(f"{bookie} says {answer!r}")

    return authenticate


def tls(trust="authority", own="client"):
    own = {"certificate": CERTIFICATES / f"{own}.pem", "key": CERTIFICATES / f"{own}.key"} if own else {}
    return bindery.Tls(CERTIFICATES / f"{trust}.pem", **own)


class Hooks(unittest.TestCase):
    def client(self, **options):
        options = {"tls": tls(), "auth_plugin": PLUGIN, "authenticate": prove(SECRET), **options}
        client = bindery.Client(URI, request_timeout=5, **options)
        self.addCleanup(client.close)
        return client

    def refusal(self, **options):
        """What an append says whose bookie lets nobody in."""
        writer = self.client(**options).create(**ONE)
        with self.assertRaises((bindery.NotEnoughBookiesError, bindery.WrongPasswordError)) as raised:
            writer.append(b"one")
        return str(raised.exception)

    def test_both_protocols_write_and_read(self):
        payloads = [b"", bytes(range(256)) * 4000] + [b"%d" % i for i in range(300)]
        client = self.client()
        for deferred_sync in (False, True):  # over v2, over v3
            with client.create(**ONE, deferred_sync=deferred_sync) as writer:
                for payload in payloads:
                    writer.enqueue(payload)
            self.assertEqual([entry.payload for entry in client.open(writer.id)], payloads)

    def test_asyncio_authenticates_on_other_threads(self):
        seen = []

        def authenticate(bookie, host, port):
            seen.append((bookie, host, port, threading.get_ident()))
            yield from prove(SECRET)(bookie, host, port)

        async def run():
            client = bindery.Client(URI, tls=tls(), auth_plugin=PLUGIN, authenticate=authenticate)
            async with client, await client.create_async(**ONE) as writer:
                await writer.append_async(b"one")

        asyncio.run(run())
        self.assertTrue(seen)
        for bookie, host, port, thread in seen:
            self.assertEqual(bookie, f"{host}:{port}")
            self.assertNotEqual(thread, threading.get_ident())

    def test_what_authentication_raises_is_in_the_error(self):
        def give_up(bookie, host, port):
            yield b"hello"
            raise PermissionError("no secret in this house")

        self.assertIn("no secret in this house", self.refusal(authenticate=give_up))
        self.assertIn("must be a generator function", self.refusal(authenticate=lambda *_: b"hello"))

        def speak(bookie, host, port):
            yield "hello"

        self.assertIn("must yield bytes", self.refusal(authenticate=speak))

        def shout(bookie, host, port):
            yield b"hello"
            return "hmac"

        self.assertIn("must return bytes", self.refusal(authenticate=shout))

    def test_the_last_message_needs_no_answer(self):
        def authenticate(bookie, host, port):
            challenge = yield b"hello"
            return hmac.new(SECRET, challenge, hashlib.sha1).digest()

        with self.client(authenticate=authenticate).create(**ONE) as writer:
            self.assertEqual(writer.append(b"one"), 0)

    def assert_explained(self, words, **options):
        """It is refused each time. The bookie closes the connection, and a reset may overtake the alert that says why."""
        said = []
        for _ in range(5):
            said.append(self.refusal(tls=tls(**options)))
            if words in said[-1]:
                return
        self.fail(f"{words!r} not found in {said}")

    def test_who_is_not_trusted_is_refused(self):
        self.assertIn("no longer be written", self.refusal(authenticate=prove(b"another secret")))
        self.assertIn("a user", self.refusal(auth_plugin=None, authenticate=None))
        self.assertIn("none of the authorities", self.refusal(tls=tls(trust="stranger")))
        self.assert_explained("refuses this client's certificate", own="stranger")
        self.assert_explained("refuses a client without a certificate", own=None)
        # Another plugin than the bookie's.
        refusal = self.refusal(auth_plugin=None, authenticate=None, user="hd", password="tiger")
        self.assertIn("bookieAuthProviderFactoryClass", refusal)
        self.assertNotIn("tiger", refusal)
        # It was not the bookie that failed.
        with self.client().create(**ONE) as writer:
            self.assertEqual(writer.append(b"one"), 0)

    def test_arguments_that_are_wrong(self):
        for options in ({"auth_plugin": PLUGIN}, {"authenticate": prove(SECRET)}):
            with self.assertRaisesRegex(ValueError, "give both"):
                bindery.Client(URI, **options)
        with self.assertRaisesRegex(TypeError, "generator function"):
            bindery.Client(URI, auth_plugin=PLUGIN, authenticate=SECRET)
        for options in ({"user": "hd"}, {"password": "tiger"}):
            with self.assertRaisesRegex(ValueError, "give both"):
                bindery.Client(URI, **options)
        with self.assertRaisesRegex(ValueError, 'no mechanism "gssapi"'):
            bindery.Client(URI, user="hd", password="tiger", mechanism="gssapi")
        with self.assertRaisesRegex(ValueError, "not both"):
            bindery.Client(URI, user="hd", password="tiger", auth_plugin=PLUGIN, authenticate=prove(SECRET))
        with self.assertRaisesRegex(ValueError, "over TLS only"):
            bindery.Client(URI, user="hd", password="tiger", mechanism="plain").bookies()
        authority, key = CERTIFICATES / "authority.pem", CERTIFICATES / "client.key"
        with self.assertRaisesRegex(FileNotFoundError, "missing.pem"):
            bindery.Tls(CERTIFICATES / "missing.pem")
        with self.assertRaisesRegex(ValueError, "client.key: no certificate in it"):
            bindery.Tls(key)
        for options in ({"certificate": CERTIFICATES / "client.pem"}, {"key": key}):
            with self.assertRaisesRegex(ValueError, "give both"):
                bindery.Tls(authority, **options)
        with self.assertRaisesRegex(ValueError, "client.pem: no private key can be read"):
            bindery.Tls(authority, certificate=CERTIFICATES / "client.pem", key=CERTIFICATES / "client.pem")
        with self.assertRaisesRegex(ValueError, "bookie.key cannot be used together"):
            bindery.Tls(authority, certificate=CERTIFICATES / "client.pem", key=CERTIFICATES / "bookie.key")
        with self.assertWarnsRegex(RuntimeWarning, "names in bookies' certificates are not checked"):
            bindery.Tls(authority, check_names=False)
        with tempfile.TemporaryDirectory() as directory:
            torn = pathlib.Path(directory, "torn.pem")
            torn.write_bytes(authority.read_bytes()[:200])
            with self.assertRaisesRegex(ValueError, "torn.pem"):
                bindery.Tls(torn)


if __name__ == "__main__":
    unittest.main()
