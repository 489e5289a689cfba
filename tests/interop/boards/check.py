#!/usr/bin/env python3
"""check.py --prometheus URL --queries FILE --board FILE --reference FILE --directory DIR [--show] SCRAPE...

Asks Prometheus each expression of the queries. One whose metrics are all served, or stand-ins, must have data; one with an absent metric
must have none, or the reference says something that is not so. Then looks whether every name of the scrapes is in the reference.
"""
import argparse
import json
import math
import re
import sys
import urllib.parse
import urllib.request

NAME = re.compile(r"\b[a-z][a-zA-Z0-9]*_\w+")


def names_in(expression):
    bare = re.sub(r"\{[^}]*\}", "", expression)
    bare = re.sub(r"\bby ?\([^)]*\)", "", bare)
    return set(NAME.findall(bare))


def sections(text):
    """Rows of the reference: names that are exposed, and names of boards with what they are here."""
    exposed, boards = {}, {}
    is_boards = False
    for line in text.splitlines():
        if line.startswith("## "):
            is_boards = line.startswith("## Names of BookKeeper, as published boards")
        found = re.match(r"\| `([^`]+)` \| ([^|]+) \|", line)
        if found and is_boards:
            boards[found[1]] = found[2].strip()
        elif found:
            exposed[found[1]] = found[2].split(",")[0].strip()
    return exposed, boards


def expressions(board):
    """Those of the panels of a board."""
    if isinstance(board, dict):
        return [board["expr"]] if "expr" in board else [found for part in board.values() for found in expressions(part)]
    return [found for part in board for found in expressions(part)] if isinstance(board, list) else []


def asked(expression):
    """An expression of a board as Prometheus takes it."""
    # Variables stand for everything, and a number that is looked for is not there.
    query = re.sub(r'=~?"\$[^"]*"', '=~".*"', expression)
    return re.sub(r"== (\d)", r"== bool \1", query)


def pattern(name):
    return re.escape(name).replace(re.escape("<path>"), r"\w+") + r"(_count|_sum)?$"


def status(name, boards):
    found = [how for known, how in boards.items() if re.match(pattern(known), name)]
    if len(found) != 1:
        sys.exit(f"boards: {name} is queried, and the reference has {len(found)} rows for it")
    return found[0]


class Prometheus:
    def __init__(self, url):
        self.url = url

    def ask(self, expression):
        """The values that the expression has now."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            sys.exit(f"boards: Prometheus refuses {expression}: {error.read().decode()}")
        return [float(series["value"][1]) for series in result]


def main():
    arguments = argparse.ArgumentParser()
    for name in ("prometheus", "queries", "board", "reference", "directory"):
        arguments.add_argument(f"--{name}", required=True)
    arguments.add_argument("--show", action="store_true")
    arguments.add_argument("scrapes", nargs="+")
    given = arguments.parse_args()
    exposed, boards = sections(open(given.reference, encoding="utf-8").read())
    prometheus, bad = Prometheus(given.prometheus), []
    if prometheus.ask("min(up)") != [1.0]:
        sys.exit("boards: Prometheus cannot read what a bookie exposes")
    rows = [line.split("\t") for line in open(given.queries, encoding="utf-8") if "\t" in line]
    own = [(given.board, expression) for expression in expressions(json.load(open(given.board, encoding="utf-8")))]
    queried = {"served": set(), "stand-in": set(), "absent": set()}
    with_data = 0
    for board, expression in rows:
        expression = expression.strip()
        names = names_in(expression)
        states = {name: status(name, boards) for name in names}
        for name, how in states.items():
            queried[how].add(name)
        # A directory has another path here.
        query = asked(expression)
        query = re.sub(r"\bbookie_ledger_dir_\w+_usage\b", '{__name__=~"bookie_ledger_dir_.*_usage"}', query)
        query = re.sub(r"(\{__name__=[^}]*)\}\{", r"\1,", query)
        values = prometheus.ask(query)
        if given.show:
            print(f"{board}\t{expression}\t{values[:3]}")
        numbers = [value for value in values if not math.isnan(value)]
        # All that is read is in memory here, so one of these is nothing by nothing.
        has_data = bool(numbers) or (bool(values) and "/ sum(irate(bookie_read_cache_hits" in query)
        is_absent = "absent" in states.values()
        if is_absent and values:
            bad.append(f"{board}: has data, and the reference calls some of it absent: {expression}")
        if not is_absent and not has_data:
            bad.append(f"{board}: no data ({values}): {query}")
        with_data += has_data
    for name in queried["served"] | queried["stand-in"]:
        query = re.sub(r"^bookie_ledger_dir_\w+_usage$", '{__name__=~"bookie_ledger_dir_.*_usage"}', name)
        if not [value for value in prometheus.ask(query) if not math.isnan(value)]:
            bad.append(f"{name}: no number")
    for board, expression in own:
        values = prometheus.ask(asked(expression))
        if given.show:
            print(f"{board}\t{expression}\t{values[:3]}")
        # Here is no bucket.
        if not values and "bindery_tier_" not in expression:
            bad.append(f"{board}: no data: {expression}")
        for name in names_in(expression):
            if not any(re.match(pattern(row), name) for row in exposed):
                bad.append(f"{board}: {name} is not in the reference")
    # What boards are there for: with load, these are above zero.
    for expression in (
        'sum(irate(bookkeeper_server_ADD_ENTRY_count{success="true"}[1m])) + sum(bookkeeper_server_ADD_ENTRY_count)',
        'max(bookkeeper_server_ADD_ENTRY{success="true",quantile="0.99"})',
        'sum(bookie_journal_JOURNAL_ADD_ENTRY_count{success="true"})',
        'max(bookkeeper_server_READ_ENTRY{success="true",quantile="0.5"})',
        "max(bookie_WRITE_BYTES)", "max(bookie_READ_BYTES)", "max(bookie_write_cache_size)", "max(bookie_ledgers_count)",
        "min(bookie_ledger_writable_dirs)", "min({__name__=~\"bookie_ledger_dir_.*_usage\"})", "min(process_cpu_seconds_total)",
        "min(jvm_memory_bytes_used{area=\"heap\"})", "min(jvm_memory_direct_bytes_used)", "min(jvm_memory_bytes_max)",
    ):
        if not (prometheus.ask(expression) or [0])[0] > 0:
            bad.append(f"not above zero under load: {expression}")
    directory = re.sub(r"[^a-zA-Z0-9_:]", "_", given.directory)
    names = set()
    for scrape in given.scrapes:
        helped = set()
        for line in open(scrape, encoding="utf-8"):
            if line.startswith("# HELP "):
                helped.add(line.split()[2])
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                names.add(name)
                if name not in helped:
                    bad.append(f"{scrape}: {name} has no help")
                known = [row for row in exposed if re.match(pattern(row).replace("(_count|_sum)?", ""), name)]
                if [exposed[row] for row in known] != [kind]:
                    bad.append(f"{scrape}: {name} ({kind}) is not in the reference")
    if not any(re.fullmatch(rf"bookie_ledger_dir_{directory}\w*_usage", name) and "_current_" not in name for name in names):
        bad.append(f"no name has the path of the ledger directory, {directory}")
    print(f"boards: {len(rows)} expressions, {with_data} with data, and {len(own)} of our own board; of the metrics that they query {len(queried['served'])} are served, "
          f"{len(queried['stand-in'])} stand-ins, {len(queried['absent'])} absent; {len(names)} names are exposed")
    for line in bad:
        print(f"boards: {line}", file=sys.stderr)
    sys.exit(1 if bad or len(rows) < 250 or len(own) < 25 or len(names) < 200 else 0)


main()
