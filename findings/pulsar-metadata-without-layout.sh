#!/usr/bin/env bash
# pulsar-metadata-without-layout: a BookKeeper cluster that Pulsar's metadata driver makes in ZooKeeper has no LAYOUT, and loses
# `available` with its last bookie.
#
# Software: org.apache.pulsar:pulsar-metadata 4.2.4, org.apache.bookkeeper:bookkeeper-server 4.17.3, ZooKeeper from its dependencies (all
# from Maven Central), Java 17 or later.
# Input: what `initnewcluster` and the start of a bookie call with metadataServiceUri=metadata-store:zk:HOST:PORT/CHROOT: initNewCluster(),
# the registration of one bookie, the ledger manager; then that bookie ends.
# BookKeeper's own drivers make INSTANCEID, LAYOUT, available and available/readonly as persistent nodes, and tools take a missing LAYOUT for
# "there is no cluster".
# Seen (28 November 2026):
#   - initNewCluster() is true and there is a ledger manager, but there is INSTANCEID only: neither LAYOUT nor available/readonly.
#   - `available` comes with the first bookie as a container node, and the server removes it with the last one. (Containers are looked at
#     once a minute by default, each second here.)
#   - The ledgers root is `ledgers` below the chroot of the URI.
#   - BookKeeper's own driver (zk+null) on the same root then writes LAYOUT (version 2, HierarchicalLedgerManagerFactory) as soon as it is
#     asked for its ledger manager: who looks first decides whether there is one.
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
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-metadata</artifactId><version>4.2.4</version></dependency>
    <dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>4.17.3</version></dependency>
    <!-- Asked for by ZooKeeper's server, which does not name them as dependencies. -->
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.2.25</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" || exit 2
mkdir "$work/data"
cat >"$work/Tree.java" <<'JAVA'
import java.io.File;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.server.ContainerManager;
import org.apache.zookeeper.server.RequestProcessor;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

public class Tree {
    static class Server extends ZooKeeperServer {
        Server(File folder) throws Exception {
            super(folder, folder, 2000);
        }

        RequestProcessor first() {
            return firstProcessor;
        }
    }

    static boolean asStated = true;

    static void expect(String what, Object stated, Object seen) {
        boolean same = stated.equals(seen);
        asStated &= same;
        System.out.println((same ? "as stated: " : "DIFFERENT: ") + what + ": " + seen + (same ? "" : ", stated: " + stated));
    }

    static MetadataBookieDriver driver(String uri) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(uri);
        MetadataBookieDriver driver = MetadataDrivers.getBookieDriver(URI.create(uri));
        driver.initialize(configuration, NullStatsLogger.INSTANCE);
        return driver;
    }

    public static void main(String[] arguments) throws Exception {
        Server server = new Server(new File(arguments[0]));
        ServerCnxnFactory connections = ServerCnxnFactory.createFactory(new InetSocketAddress("127.0.0.1", 0), 100);
        connections.startup(server);
        new ContainerManager(server.getZKDatabase(), server.first(), 1000, 10000).start();
        String address = "127.0.0.1:" + connections.getLocalPort();
        ZooKeeper zooKeeper = new ZooKeeper(address, 10000, event -> { });

        Class.forName("org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver");
        Class.forName("org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver");
        MetadataBookieDriver pulsar = driver("metadata-store:zk:" + address + "/chroot");
        RegistrationManager bookies = pulsar.createRegistrationManager();
        expect("initNewCluster", true, bookies.initNewCluster());
        expect("ledger manager", "PulsarLedgerManagerFactory", pulsar.getLedgerManagerFactory().getClass().getSimpleName());
        expect("children of the root", "[INSTANCEID]", new TreeSet<>(zooKeeper.getChildren("/chroot/ledgers", false)).toString());

        BookieId bookie = BookieId.parse("bookie-1:3181");
        bookies.registerBookie(bookie, false, new BookieServiceInfo());
        expect("with a bookie", "[INSTANCEID, available]", new TreeSet<>(zooKeeper.getChildren("/chroot/ledgers", false)).toString());
        expect("available", "[bookie-1:3181]", zooKeeper.getChildren("/chroot/ledgers/available", false).toString());
        bookies.unregisterBookie(bookie, false);
        for (int i = 0; i < 60 && zooKeeper.exists("/chroot/ledgers/available", false) != null; i++) {
            Thread.sleep(500);
        }
        expect("without a bookie", "[INSTANCEID]", new TreeSet<>(zooKeeper.getChildren("/chroot/ledgers", false)).toString());

        MetadataBookieDriver own = driver("zk+null://" + address + "/chroot/ledgers");
        own.getLedgerManagerFactory();
        byte[] layout = zooKeeper.getData("/chroot/ledgers/LAYOUT", false, null);
        String text = new String(layout, StandardCharsets.UTF_8);
        expect("LAYOUT, once BookKeeper's own driver looked",
            "2 org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", text.trim().replace('\n', ' '));
        System.exit(asStated ? 0 : 1);
    }
}
JAVA
rc=0
timeout 120 java -cp "$work/jars/*" "$work/Tree.java" "$work/data" >"$work/out" 2>"$work/log" || rc=$?
grep -E '^(as stated|DIFFERENT)' "$work/out" || rc=2
[ "$rc" -le 1 ] || { tail -n 20 "$work/log"; rc=2; }
exit "$rc"
