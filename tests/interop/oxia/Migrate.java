import java.nio.charset.StandardCharsets;
import java.util.Optional;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.coordination.impl.MigrationCoordinator;
import org.apache.pulsar.metadata.impl.ZKMetadataStore;

/** Moves a cluster's metadata with Pulsar's own coordinator, beside a store of Pulsar's that takes part as a broker does: SOURCE TARGET. */
class Migrate {
    public static void main(String[] args) {
        // Threads of the clients would keep the process alive.
        try {
            migrate(args[0], args[1]);
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void migrate(String from, String to) throws Exception {
        MetadataStoreConfig config = MetadataStoreConfig.builder().sessionTimeoutMillis(10_000).build();
        byte[] value = "broker".getBytes(StandardCharsets.UTF_8);
        MetadataStoreExtended broker = MetadataStoreExtended.create(from, config);
        broker.put("/admin/clusters/c", value, Optional.empty()).get();
        ZKMetadataStore source = new ZKMetadataStore(from, config, false);
        new MigrationCoordinator(source, to).startMigration();
        for (int i = 0; ; i++) {
            try {
                broker.put("/admin/clusters/c", value, Optional.of(0L)).get();
                break;
            } catch (Exception e) {
                if (i == 100) throw e;
                Thread.sleep(100);
            }
        }
        if (source.get("/admin/clusters/c").get().orElseThrow().getStat().getVersion() != 0) throw new AssertionError("the broker wrote to the source");
        broker.close();
        source.close();
    }
}
