"""Where entries go, and a metadata store that is secured. The bookies of BINDERY_METADATA all have the host 127.0.0.1."""
import os
import pathlib
import tempfile
import unittest

import bindery

URI = os.environ["BINDERY_METADATA"]
CERTIFICATES = pathlib.Path(os.environ["BINDERY_CERTIFICATES"])
# The metadata store of test_hooks, over its secure port; the Java bookie there lets nobody in without a certificate.
SECURED_URI = os.environ["BINDERY_SECURED_METADATA"]
SECURED_PASSWORD = os.environ["BINDERY_SECURED_PASSWORD"]
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


class Placement(unittest.TestCase):
    def client(self, **options):
        client = bindery.Client(URI, **options)
        self.addCleanup(client.close)
        return client

    def write(self, client):
        with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append(b"x")
        return [entry.payload for entry in client.open(writer.id)]

    def test_ledgers_are_written_with_every_policy(self):
        with tempfile.TemporaryDirectory() as home:
            table, script = pathlib.Path(home, "map"), pathlib.Path(home, "script")
            table.write_text("# hosts and places\n127.0.0.1 /eu/rack-1\n")
            script.write_text('#!/bin/sh\nfor host in "$@"; do echo /eu/rack-1; done\n')
            script.chmod(0o755)
            racks = {"127.0.0.1": "/eu/rack-1"}
            for options in (
                {"rack_map": racks, "location": "/eu/rack-1"},
                {"rack_map": table, "placement": bindery.RackAware(racks_min=3)},
                {"rack_map": str(table), "placement": bindery.RegionAware(regions=["eu"], regions_min=1, racks_min=1)},
                {"rack_script": script, "placement": bindery.RegionAware()},
                {"rack_map": racks, "placement": "random", "disk_weights": bindery.DiskWeights(multiple_max=0, interval=60)},
                {"disk_weights": bindery.DiskWeights(), "bookie_quarantine_time": 10},
                {"metadata_patience": 5, "bookie_patience": 5},
            ):
                self.assertEqual(self.write(self.client(**options)), [b"x"], options)

    def test_what_is_enforced_and_cannot_be_had_is_an_error(self):
        for placement, why in (
            (bindery.RackAware(enforced=True), "every write set on 2 racks, 1 can be had"),
            (bindery.RegionAware(enforced=True, racks_min=1), "every write set on 2 regions"),
            (bindery.RegionAware(regions=["us"]), "0 available|left out"),
        ):
            client = self.client(rack_map={"127.0.0.1": "/eu/rack-1"}, placement=placement)
            with self.assertRaisesRegex(bindery.NotEnoughBookiesError, why):
                client.create(ensemble=2, write_quorum=2, ack_quorum=2)

    def test_bad_arguments(self):
        racks = {"127.0.0.1": "/eu/rack-1"}
        for options, why in (
            ({"placement": "nowhere"}, "no placement \"nowhere\""),
            ({"placement": bindery.RackAware()}, "needs rack_map or rack_script"),
            ({"location": "/eu/rack-1"}, "rack_map or rack_script has to say"),
            ({"rack_map": racks, "location": "eu"}, "location: \"eu\" is no rack"),
            ({"rack_map": racks, "rack_script": "x"}, "not both"),
            ({"rack_map": {"127.0.0.1": "rack"}}, "rack_map: 127.0.0.1: \"rack\" is no rack"),
            ({"rack_map": {"a host": "/rack"}}, "is no host"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                bindery.Client(URI, **options)
        with self.assertRaises(ValueError):
            bindery.DiskWeights(interval=0)
        with self.assertRaisesRegex(OSError, "cannot read the rack map /nowhere"):
            bindery.Client(URI, rack_map="/nowhere")
        with tempfile.NamedTemporaryFile("w") as table:
            table.write("127.0.0.1\n")
            table.flush()
            with self.assertRaisesRegex(ValueError, "line 1 of the rack map"):
                bindery.Client(URI, rack_map=table.name)
        for options in ({"placement": 5}, {"rack_map": 5}, {"disk_weights": True}):
            with self.assertRaises(TypeError):
                bindery.Client(URI, **options)


class SecuredMetadata(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.password = self.write("password", SECURED_PASSWORD + "\n")

    def write(self, name, text):
        path = self.home / name
        path.write_text(text)
        return path

    def client(self, uri=SECURED_URI, **security):
        security = {"trust": CERTIFICATES / "authority.pem", **security}
        client = bindery.Client(uri, metadata_security=bindery.MetadataSecurity(**security), session_timeout=15)
        self.addCleanup(client.close)
        return client

    def test_tls_and_a_login(self):
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        jaas = self.write("jaas", 'Mine { %s username="bk" password="%s"; };' % (module, SECURED_PASSWORD))
        for security in (
            {},
            {"user": "bk", "password_file": self.password},
            {"jaas_file": jaas, "jaas_section": "Mine", "restricted": True},
        ):
            client = self.client(**security)
            ledger = client.create_handed_over(**ONE)
            self.assertIn(ledger, list(client.ledgers()), security)
            if security.get("restricted"):
                with self.assertRaisesRegex(bindery.BinderyError, "refuses access"):
                    self.client().metadata(ledger)
            client.delete(ledger)

    def test_what_is_refused_says_why(self):
        wrong = self.write("wrong", "words")
        plain = os.environ["BINDERY_LOCKED_METADATA"]
        for options, why in (
            ({"trust": CERTIFICATES / "stranger.pem"}, r"none of the authorities in trust=.*stranger\.pem has signed"),
            ({"trust": self.home / "nothing.pem"}, "nothing.pem"),
            ({"user": "bk", "password_file": wrong}, "refuses our credentials"),
            ({"user": "bk", "password_file": self.home / "nothing"}, "nothing"),
            ({"jaas_file": self.write("empty", "")}, "no section Client"),
            ({"uri": plain}, "TLS|secure"),
        ):
            with self.assertRaisesRegex(bindery.UnavailableError, why):
                list(self.client(**options).ledgers())

    def test_bad_arguments(self):
        for options, why in (
            ({"identity": "x"}, "needs trust"),
            ({"trust_password": "x"}, "needs trust"),
            ({"check_names": False}, "needs trust"),
            ({"trust": "x", "identity_password": "x"}, "give identity, too"),
            ({"user": "x"}, "go together"),
            ({"password_file": "x"}, "go together"),
            ({"user": "x", "password_file": "x", "jaas_file": "x"}, "not both"),
            ({"jaas_section": "x"}, "give jaas_file, too"),
            ({"restricted": True}, "need an identity"),
            ({"trust": "x", "restricted": True}, "need an identity"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                bindery.MetadataSecurity(**options)
        with self.assertWarnsRegex(RuntimeWarning, "are not checked"):
            bindery.MetadataSecurity(trust="x", check_names=False)


if __name__ == "__main__":
    unittest.main()
