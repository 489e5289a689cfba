#!/usr/bin/env bash
# list-of-entries-unanswered: a bookie with DbLedgerStorage, which is what Pulsar uses, never answers a client that asks which entries of a
# ledger it has.
#
# Software: org.apache.bookkeeper:bookkeeper-server 4.18.0, ZooKeeper from its dependencies (all from Maven Central), Java 17 or later.
# Input: one bookie with the default settings but for ledgerStorageClass and its directories; a ledger of three entries, which is closed; then
# BookKeeperAdmin.asyncGetListOfEntriesOfLedger, which is what Java's auditor calls in its check of replicas.
# A request that a server does not support has an answer in the protocol (EBADREQ), and a failure of the storage, too (EIO).
# Seen (29 November 2026):
#   - The storage throws UnsupportedOperationException (its source names issue 2078), which is neither of the exceptions that the processor of
#     the request catches. The request has no answer; the client ends it by its own time limit (5 s by default): error -23.
#   - Asked for a ledger that it does not have, the same bookie answers at once: error -7.
#   - The connection and the bookie go on: the entries are read before and after it.
#   - With SortedLedgerStorage, the default, the answer has the three entries.
#
# Exit code 0: behaves as stated. 1: it does not any more. 2: could not be run.
set -eu
for tool in mvn java; do command -v $tool >/dev/null || { echo "missing: $tool" >&2; exit 2; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>4.18.0</version></dependency>
    <!-- Asked for by ZooKeeper's server, which does not name them as dependencies. -->
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.2.25</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" || exit 2
cat >"$work/Entries.java" <<'JAVA'
import java.io.File;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

public class Entries {
    static final byte[] PASSWORD = "words".getBytes();
    static boolean asStated = true;

    static void expect(String what, Object stated, Object seen) {
        boolean same = stated.equals(seen);
        asStated &= same;
        System.out.println((same ? "as stated: " : "DIFFERENT: ") + what + ": " + seen + (same ? "" : ", stated: " + stated));
    }

    static String ask(BookKeeperAdmin admin, BookieId bookie, long ledger) throws Exception {
        long begin = System.nanoTime();
        String answer;
        try {
            List<Long> entries = new ArrayList<>();
            var found = admin.asyncGetListOfEntriesOfLedger(bookie, ledger).get(60, TimeUnit.SECONDS);
            for (long entry = 0; entry < 10; entry++) {
                if (found.isEntryAvailable(entry)) {
                    entries.add(entry);
                }
            }
            answer = "entries " + entries;
        } catch (ExecutionException e) {
            answer = "error " + ((BKException) e.getCause()).getCode();
        }
        // The client's own limit is 5 s.
        return answer + (System.nanoTime() - begin >= 4_500_000_000L ? ", after the client's time limit" : "");
    }

    static int read(BookKeeper client, long ledger) throws Exception {
        try (LedgerHandle reader = client.openLedger(ledger, BookKeeper.DigestType.CRC32C, PASSWORD)) {
            Enumeration<LedgerEntry> entries = reader.readEntries(0, 2);
            int count = 0;
            for (; entries.hasMoreElements(); entries.nextElement()) {
                count++;
            }
            return count;
        }
    }

    static void run(String zookeeper, File folder, String storage) throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://" + zookeeper + "/" + folder.getName());
        configuration.setBookiePort(port);
        configuration.setAdvertisedAddress("127.0.0.1");
        configuration.setAllowLoopback(true);
        configuration.setLedgerStorageClass(storage);
        configuration.setJournalDirName(new File(folder, "journal").getPath());
        configuration.setLedgerDirNames(new String[] {new File(folder, "ledgers").getPath()});
        BookKeeperAdmin.initNewCluster(configuration);
        LifecycleComponentStack bookie =
            EmbeddedServer.builder(new BookieConfiguration(configuration)).build().getLifecycleComponentStack();
        bookie.start();

        ClientConfiguration of = new ClientConfiguration();
        of.setMetadataServiceUri(configuration.getMetadataServiceUri());
        try (BookKeeper client = new BookKeeper(of); BookKeeperAdmin admin = new BookKeeperAdmin(client, of)) {
            for (int i = 0; i < 60 && admin.getAvailableBookies().isEmpty(); i++) {
                Thread.sleep(500);
            }
            BookieId id = admin.getAvailableBookies().iterator().next();
            LedgerHandle writer = client.createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, PASSWORD);
            for (int i = 0; i < 3; i++) {
                writer.addEntry(("entry " + i).getBytes());
            }
            writer.close();
            String name = storage.substring(storage.lastIndexOf('.') + 1);
            boolean isDb = name.equals("DbLedgerStorage");
            expect(name + ", entries read", 3, read(client, writer.getId()));
            expect(name + ", asked for the ledger's entries", isDb ? "error -23, after the client's time limit" : "entries [0, 1, 2]",
                ask(admin, id, writer.getId()));
            expect(name + ", asked for the entries of a ledger that it does not have", "error -7", ask(admin, id, 4711));
            expect(name + ", entries read again", 3, read(client, writer.getId()));
        }
        bookie.close();
    }

    public static void main(String[] arguments) throws Exception {
        String thrown = "nothing";
        try {
            new DbLedgerStorage().getListOfEntriesOfLedger(0);
        } catch (RuntimeException e) {
            thrown = e.getClass().getSimpleName();
        }
        expect("DbLedgerStorage throws", "UnsupportedOperationException", thrown);
        File folder = new File(arguments[0]);
        ZooKeeperServer server = new ZooKeeperServer(new File(folder, "zookeeper"), new File(folder, "zookeeper"), 2000);
        ServerCnxnFactory connections = ServerCnxnFactory.createFactory(new InetSocketAddress("127.0.0.1", 0), 100);
        connections.startup(server);
        String zookeeper = "127.0.0.1:" + connections.getLocalPort();
        run(zookeeper, new File(folder, "db"), "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage");
        run(zookeeper, new File(folder, "sorted"), "org.apache.bookkeeper.bookie.SortedLedgerStorage");
        System.exit(asStated ? 0 : 1);
    }
}
JAVA
mkdir "$work/data" "$work/data/zookeeper"
rc=0
timeout 240 java -Xmx512m -XX:MaxDirectMemorySize=512m -Dio.netty.tryReflectionSetAccessible=true --add-opens java.base/java.nio=ALL-UNNAMED \
  --add-opens java.base/jdk.internal.misc=ALL-UNNAMED -cp "$work/jars/*" "$work/Entries.java" "$work/data" >"$work/out" 2>"$work/log" || rc=$?
grep -E '^(as stated|DIFFERENT)' "$work/out" || rc=2
[ "$rc" -le 1 ] || { tail -n 20 "$work/log"; rc=2; }
exit "$rc"
