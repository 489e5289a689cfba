#!/usr/bin/env bash
# pulsar-migration-chroot: where Pulsar's metadata is below a path of ZooKeeper, its own store cannot acknowledge a move of the metadata (PIP-454), so
# that none succeeds.
#
# Software: org.apache.pulsar:pulsar-metadata 5.0.1, with ZooKeeper 3.9.5 and the classes of BookKeeper 4.18.0 (all from Maven Central), Java 21 or later.
# Input: one ZooKeeper server in the process. Two stores with the URL zk:HOST:PORT, and two with zk:HOST:PORT/p, a form that Pulsar documents for clusters
# that share a ZooKeeper. Each registers as a participant, as each broker and bookie does. The migration's node is then set as the coordinator does at the beginning:
# {"phase":"PREPARATION","targetUrl":"memory:..."}; Pulsar's store in memory takes the place of an Oxia server.
# Seen (29 November 2026):
#   - With zk:HOST:PORT both delete their nodes below /pulsar/migration-coordinator/participants, which acknowledges.
#   - With zk:HOST:PORT/p the first one does, whose registration also made the nodes above. The node of the second one stays, and its log has a
#     NoNodeException for /p/pulsar/migration-coordinator/participants/id-0000000001.
# A sequential put that is sent in a batch returns a path that begins with /p, and the deletion takes it for a path below /p. The coordinator waits 60 s
# for the participants to go and gives up.
#
# Exit code 0: behaves as stated. 1: it does not any more. 2: could not be run.
set -eu
java=${JAVA21_HOME:+$JAVA21_HOME/bin/}java
for tool in mvn "$java"; do command -v "$tool" >/dev/null || { echo "missing: $tool" >&2; exit 2; }; done
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 21 ] || { echo "Java 21 or later is needed, this is $version: set JAVA21_HOME" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId><artifactId>pulsar-metadata</artifactId><version>5.0.1</version>
      <exclusions>
        <exclusion><groupId>org.apache.bookkeeper</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.apache.zookeeper</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>io.netty</groupId><artifactId>netty-transport-native-io_uring</artifactId></exclusion>
      </exclusions>
    </dependency>
    <!-- Older ones come with what follows, and do not go with Pulsar's Jackson. -->
    <dependency><groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-annotations</artifactId><version>2.21</version></dependency>
    <dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>4.18.0</version></dependency>
    <!-- Asked for by ZooKeeper's server, which does not name them as dependencies. -->
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.2.25</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" || exit 2
cat >"$work/Move.java" <<'JAVA'
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.impl.ZKMetadataStore;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

public class Move {
    static final String HOME = "/pulsar/migration-coordinator";
    static boolean asStated = true;

    static void expect(String what, Object stated, Object seen) {
        boolean same = stated.equals(seen);
        asStated &= same;
        System.out.println((same ? "as stated: " : "DIFFERENT: ") + what + ": " + seen + (same ? "" : ", stated: " + stated));
    }

    static void run(String name, String url, List<String> stated) throws Exception {
        MetadataStoreConfig config = MetadataStoreConfig.builder().sessionTimeoutMillis(30_000).build();
        MetadataStoreExtended first = MetadataStoreExtended.create(url, config);
        MetadataStoreExtended second = MetadataStoreExtended.create(url, config);
        ZKMetadataStore coordinator = new ZKMetadataStore(url, config, false);
        expect(name + ", participants before", List.of("id-0000000000", "id-0000000001"), coordinator.getChildrenFromStore(HOME + "/participants").get());
        String flag = "{\"phase\":\"PREPARATION\",\"targetUrl\":\"memory:" + name + "\"}";
        coordinator.put(HOME + "/migration", flag.getBytes(StandardCharsets.UTF_8), Optional.of(-1L)).get();
        List<String> left = List.of();
        for (int i = 0; i < 30; i++) {
            Thread.sleep(500);
            left = coordinator.getChildrenFromStore(HOME + "/participants").get();
            if (left.isEmpty()) {
                break;
            }
        }
        expect(name + ", participants that have not acknowledged after 15 s", stated, left);
        first.close();
        second.close();
        coordinator.close();
    }

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        ZooKeeperServer server = new ZooKeeperServer(folder, folder, 2000);
        ServerCnxnFactory connections = ServerCnxnFactory.createFactory(new InetSocketAddress("127.0.0.1", 0), 100);
        connections.startup(server);
        String url = "zk:127.0.0.1:" + connections.getLocalPort();
        ZKMetadataStore root = new ZKMetadataStore(url, MetadataStoreConfig.builder().build(), false);
        root.put("/p", new byte[0], Optional.of(-1L)).get();
        root.close();
        run("root", url, List.of());
        run("path", url + "/p", List.of("id-0000000001"));
        System.exit(asStated ? 0 : 1);
    }
}
JAVA
mkdir "$work/data"
rc=0
timeout 180 "$java" -Xmx512m -cp "$work/jars/*" "$work/Move.java" "$work/data" >"$work/out" 2>"$work/log" || rc=$?
grep -E '^(as stated|DIFFERENT)' "$work/out" || rc=2
grep -q 'NoNodeException.* for /p/pulsar/migration-coordinator/participants/id-0000000001' "$work/out" "$work/log" &&
  echo "as stated: its log names a node that is not there" || { echo "DIFFERENT: its log names no node that is not there"; [ "$rc" != 0 ] || rc=1; }
[ "$rc" -le 1 ] || { tail -n 20 "$work/log" "$work/out"; rc=2; }
exit "$rc"
