#!/usr/bin/env bash
# ensemble-change-leaves-a-copy-out: in a ledger with an ensemble above its write quorum, an ensemble change of the Java client may confirm
# entries that it does not send to the new bookie.
#
# Software: org.apache.bookkeeper:bookkeeper-server 4.18.0, ZooKeeper from its dependencies (all from Maven Central), Java 17 or later.
# Input: four bookies with default settings; a ledger with ensemble 3, write quorum 2, ack quorum 2, so that entry N is on the positions N and
# N+1 modulo 3. Entry 0 is written. Entries 1, 2 and 3 are under way: the answer of position 2 for entry 1 is late, entry 2 is acknowledged by
# both, and entry 3 fails on position 0, as it does when that connection is lost. The late answer comes while the ensemble is changed. The
# client's requests go through a wrapper of its BookieClient, which holds these answers and alters that one; nothing else is touched.
# By the metadata the new ensemble begins with the first entry that is not confirmed.
# Seen (29 November 2026):
#   - The new ensemble begins with entry 1, and all adds succeed.
#   - Entry 2 is not on the new bookie: it was never sent there. Of two acknowledged copies the cluster knows one.
#   - With write and ack quorum 3, the same input leaves nothing out.
# After the change LedgerHandle.unsetSuccessAndSendWriteRequest goes through the adds under way. Of the first that is not on the changed position,
# PendingAddOp calls sendAddSuccessCallbacks, which confirms all completed adds behind it as well, before their turn to be sent again.
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
cat >"$work/Change.java" <<'JAVA'
import java.io.File;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.WriteCallback;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

public class Change {
    static final byte[] PASSWORD = "words".getBytes();
    static boolean asStated = true;

    static void expect(String what, Object stated, Object seen) {
        boolean same = stated.equals(seen);
        asStated &= same;
        System.out.println((same ? "as stated: " : "DIFFERENT: ") + what + ": " + seen + (same ? "" : ", stated: " + stated));
    }

    /** Holds the answers to the first adds of entries 1 to 3 until all are there. Answers come on the one thread of the ledger. */
    static class Answers {
        final int expected;
        final Map<String, Runnable> held = new TreeMap<>();
        boolean isOver;

        Answers(int copies) {
            expected = 3 * copies;
        }

        synchronized void on(long entry, int position, WriteCallback callback, int code, long ledger, BookieId bookie, Object context) {
            if (isOver || entry == 0) {
                callback.writeComplete(code, ledger, entry, bookie, context);
                return;
            }
            boolean fails = entry == 3 && position == 0;
            held.put(entry + " " + position, () ->
                callback.writeComplete(fails ? BKException.Code.BookieHandleNotAvailableException : code, ledger, entry, bookie, context));
            if (held.size() == expected) {
                isOver = true;
                Runnable failure = held.remove("3 0");
                Runnable late = held.remove("1 2");
                held.values().forEach(Runnable::run);
                failure.run();
                late.run();
            }
        }
    }

    /** Real requests to real bookies, whose answers to adds go through the above. */
    static void wrap(BookKeeper client, Answers[] answers) throws Exception {
        Field field = BookKeeper.class.getDeclaredField("bookieClient");
        field.setAccessible(true);
        Object real = field.get(client);
        field.set(client, Proxy.newProxyInstance(Change.class.getClassLoader(), new Class<?>[] {BookieClient.class}, (self, method, arguments) -> {
            if (method.getName().equals("addEntry")) {
                WriteCallback callback = (WriteCallback) arguments[5];
                Answers by = answers[0];
                arguments[5] = (WriteCallback) (code, ledger, entry, bookie, context) ->
                    by.on(entry, (Integer) context, callback, code, ledger, bookie, context);
            }
            try {
                return method.invoke(real, arguments);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }));
    }

    static void run(BookKeeper client, BookKeeperAdmin admin, Answers[] answers, int copies, String stated) throws Exception {
        answers[0] = new Answers(copies);
        LedgerHandle writer = client.createLedger(3, copies, copies, BookKeeper.DigestType.CRC32C, PASSWORD);
        writer.addEntry("entry 0".getBytes());
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int i = 1; i <= 3; i++) {
            adds.add(writer.appendAsync(("entry " + i).getBytes()));
        }
        for (CompletableFuture<Long> add : adds) {
            add.get(60, TimeUnit.SECONDS);
        }
        // Adds whose answer is not waited for.
        Thread.sleep(2000);
        writer.close();
        var ensembles = writer.getLedgerMetadata().getAllEnsembles();
        String name = "write quorum " + copies;
        expect(name + ", ensembles begin with", "[0, 1]", ensembles.keySet().toString());
        expect(name + ", last entry", 3L, writer.getLastAddConfirmed());
        List<String> missing = new ArrayList<>();
        for (long entry = 0; entry <= 3; entry++) {
            List<? extends BookieId> ensemble = ensembles.floorEntry(entry).getValue();
            for (int i = 0; i < copies; i++) {
                int position = (int) ((entry + i) % 3);
                boolean isNew = entry > 0 && !ensembles.get(0L).contains(ensemble.get(position));
                if (!admin.asyncGetListOfEntriesOfLedger(ensemble.get(position), writer.getId()).get().isEntryAvailable(entry)) {
                    missing.add("entry " + entry + " on the " + (isNew ? "new" : "old") + " bookie");
                }
            }
        }
        expect(name + ", missing", stated, missing.toString());
    }

    static LifecycleComponentStack bookie(String uri, File folder) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        try (ServerSocket free = new ServerSocket(0)) {
            configuration.setBookiePort(free.getLocalPort());
        }
        configuration.setMetadataServiceUri(uri);
        configuration.setAdvertisedAddress("127.0.0.1");
        configuration.setAllowLoopback(true);
        configuration.setJournalDirName(new File(folder, "journal").getPath());
        configuration.setLedgerDirNames(new String[] {new File(folder, "ledgers").getPath()});
        BookKeeperAdmin.initNewCluster(configuration);
        LifecycleComponentStack bookie =
            EmbeddedServer.builder(new BookieConfiguration(configuration)).build().getLifecycleComponentStack();
        bookie.start();
        return bookie;
    }

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        ZooKeeperServer server = new ZooKeeperServer(new File(folder, "zookeeper"), new File(folder, "zookeeper"), 2000);
        ServerCnxnFactory connections = ServerCnxnFactory.createFactory(new InetSocketAddress("127.0.0.1", 0), 100);
        connections.startup(server);
        ClientConfiguration of = new ClientConfiguration();
        of.setMetadataServiceUri("zk+hierarchical://127.0.0.1:" + connections.getLocalPort() + "/ledgers");
        // A slow machine is not the matter here.
        of.setAddEntryTimeout(60);
        of.setReadEntryTimeout(60);
        for (int i = 0; i < 4; i++) {
            bookie(of.getMetadataServiceUri(), new File(folder, "bookie-" + i));
        }
        try (BookKeeper client = new BookKeeper(of); BookKeeperAdmin admin = new BookKeeperAdmin(client, of)) {
            for (int i = 0; i < 120 && admin.getAvailableBookies().size() < 4; i++) {
                Thread.sleep(500);
            }
            Answers[] answers = new Answers[1];
            wrap(client, answers);
            run(client, admin, answers, 2, "[entry 2 on the new bookie]");
            run(client, admin, answers, 3, "[]");
        }
        System.exit(asStated ? 0 : 1);
    }
}
JAVA
mkdir "$work/data" "$work/data/zookeeper"
rc=0
timeout 240 java -Xmx512m -XX:MaxDirectMemorySize=512m -Dio.netty.tryReflectionSetAccessible=true --add-opens java.base/java.nio=ALL-UNNAMED \
  --add-opens java.base/jdk.internal.misc=ALL-UNNAMED -cp "$work/jars/*" "$work/Change.java" "$work/data" >"$work/out" 2>"$work/log" || rc=$?
grep -E '^(as stated|DIFFERENT)' "$work/out" || rc=2
[ "$rc" -le 1 ] || { tail -n 20 "$work/log"; rc=2; }
exit "$rc"
