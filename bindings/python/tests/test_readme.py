"""The examples of README.md, in their order and with the names that they leave behind, against a cluster such as they mention."""
import contextlib
import io
import os
import pathlib
import re
import shutil
import tempfile
import unittest

import bindery

URI = os.environ["BINDERY_METADATA"]
CERTIFICATES = pathlib.Path(os.environ["BINDERY_CERTIFICATES"])
README = pathlib.Path(__file__).parents[1] / "README.md"
# That of `bindery standalone`.
URI_THERE = "zk://127.0.0.1:2181/ledgers"


class Readme(unittest.TestCase):
    def test_its_examples_do_what_they_say(self):
        text = README.read_text()
        blocks = [(match.start(), match.group(1)) for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)]
        self.assertEqual(len(blocks), text.count("```python"))
        self.assertGreater(len(blocks), 5)
        # What the examples take for granted.
        names = {"secret": b"secret"}
        os.environ["BINDERY_USER_PASSWORD"] = "password"
        self.addCleanup(os.environ.pop, "BINDERY_USER_PASSWORD")
        with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
            for file in ("authority.pem", "client.pem", "client.key"):
                shutil.copy(CERTIFICATES / file, file)
            pathlib.Path("rack-map").write_text("127.0.0.1 /eu/rack-1\n")
            for at, source in blocks:
                # A comment behind a print says what it prints.
                expected = re.findall(r"print\(.*#: (.*)$", source, re.MULTILINE)
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    line = text.count("\n", 0, at) + 1
                    code = compile("\n" * line + source.replace(URI_THERE, URI), str(README), "exec")
                    exec(code, names)
                if expected:
                    self.assertEqual(printed.getvalue().splitlines(), expected)
                for client in [value for value in names.values() if isinstance(value, bindery.Client)]:
                    self.addCleanup(client.close)


if __name__ == "__main__":
    unittest.main()
