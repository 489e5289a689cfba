#!/usr/bin/env bash
# s3mock-conditional-create: several writers win one conditional create.
#
# Software: Adobe S3Mock 5.2.0 (com.adobe.testing:s3mock, Maven Central), Java 17 or later.
# Input: PUT of one new key by 32 connections at once, each with its own body and `If-None-Match: *`; 30 rounds, a new key each.
# S3 documents that exactly one of them succeeds and the others get 412 (or 409).
# Seen (28 November 2026, 2 cores): in 8 of 30 rounds two PUTs are answered with 200, in other runs up to eight of them. The object holds
# the body of one of the winners; the others were told that their object is stored.
# One PUT after the other behaves as documented: 200, then 412. A check that does not race sees nothing.
#
# Exit code 0: behaves as stated. 1: it does not any more. 2: could not be run.
set -eu
for tool in mvn java python3; do command -v $tool >/dev/null || { echo "missing: $tool" >&2; exit 2; }; done
work=$(mktemp -d); server=
trap '[ -z "$server" ] || { kill "$server" && wait "$server" || true; }; rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.adobe.testing</groupId><artifactId>s3mock</artifactId><version>5.2.0</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" || exit 2
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
java -Dorg.springframework.boot.logging.LoggingSystem=none -cp "$work/jars/*" com.adobe.testing.s3mock.S3MockApplication --server.port=0 --com.adobe.testing.s3mock.http-port="$port" \
  --com.adobe.testing.s3mock.store.root="$work/data" >"$work/log" 2>&1 &
server=$!
python3 - "$port" "$work/log" <<'PY'
import collections, http.client, sys, threading, time

PORT, LOG, WRITERS, ROUNDS = int(sys.argv[1]), sys.argv[2], 32, 30


def put(path, body=b"", headers={}, connection=None):
    connection = connection or http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    connection.request("PUT", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


for _ in range(240):
    try:
        made = put("/bucket")
        break
    except OSError:
        time.sleep(0.5)
else:
    sys.exit(print(open(LOG).read()[-2000:]) or 2)
if made != 200:
    sys.exit(print(f"the bucket could not be made: {made}") or 2)

create = {"If-None-Match": "*"}
in_turn = [put("/bucket/in-turn", b"one", create), put("/bucket/in-turn", b"two", create)]
print("one after the other:", in_turn)

winners = []
others = collections.Counter()
for round_number in range(ROUNDS):
    start, statuses = threading.Barrier(WRITERS), []

    def write(number):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        connection.connect()
        start.wait()
        statuses.append(put(f"/bucket/round-{round_number}", b"writer %d" % number, create, connection))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    winners.append(statuses.count(200))
    others.update(status for status in statuses if status != 200)
print("winners of each round:", winners, "other answers:", dict(others))
behaves_as_stated = in_turn == [200, 412] and max(winners) > 1
print("as stated" if behaves_as_stated else "DIFFERENT from what is stated")
sys.exit(0 if behaves_as_stated else 1)
PY
