import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Hello METADATA_URI: writes a ledger and reads it back. Hello METADATA_URI LEDGER: reads that ledger. */
public class Hello {
    public static void main(String[] args) throws Exception {
        byte[] password = "secret".getBytes();
        var config = new ClientConfiguration().setMetadataServiceUri(args[0]);
        try (var client = BookKeeper.newBuilder(config).build()) {
            long ledger = args.length > 1 ? Long.parseLong(args[1]) : write(client, password);
            var reader = client.newOpenLedgerOp().withLedgerId(ledger).withPassword(password).execute().get();
            try (reader; var entries = reader.read(0, reader.getLastAddConfirmed())) {
                for (var e : entries)
                    System.out.println(e.getLedgerId() + "/" + e.getEntryId() + " " + new String(e.getEntryBytes()));
            }
        }
    }

    static long write(BookKeeper client, byte[] password) throws Exception {
        var writer = client.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                .withPassword(password).execute().get();
        for (int i = 0; i < 1000; i++) writer.append(("entry " + i).getBytes());
        writer.close();
        return writer.getId();
    }
}
