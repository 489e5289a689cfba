import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver;
import org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver;

/**
 * BookKeeper's client on Pulsar's metadata driver, on a cluster of {@code metadata-store:} URIs. The entries of each ledger are the numbers from 1
 * on, as lines of text.
 *
 * <pre>
 * Ledgers URI write COUNT ENTRIES     creates ledgers of 3/3/2, writes and closes them, and prints their ids
 * Ledgers URI read ENTRIES ID...      reads each to its end and compares
 * </pre>
 */
class Ledgers {
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final byte[] PASSWORD = {};

    public static void main(String[] args) {
        // Threads of the client would keep the process alive, and to end them takes it two seconds.
        try {
            run(args);
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        // Both drivers name themselves where BookKeeper looks for them.
        PulsarMetadataClientDriver.init();
        PulsarMetadataBookieDriver.init();
        BookKeeper client = new BookKeeper(new ClientConfiguration().setMetadataServiceUri(args[0]));
        if (args[1].equals("write")) {
            for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                System.out.println(write(client, Integer.parseInt(args[3])));
            }
        } else {
            for (int i = 3; i < args.length; i++) {
                read(client, Integer.parseInt(args[2]), Long.parseLong(args[i]));
            }
        }
    }

    private static long write(BookKeeper client, int entries) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, DIGEST, PASSWORD);
        for (int number = 1; number <= entries; number++) {
            ledger.addEntry((number + "\n").getBytes(StandardCharsets.US_ASCII));
        }
        ledger.close();
        return ledger.getId();
    }

    private static void read(BookKeeper client, int entries, long id) throws Exception {
        LedgerHandle ledger = client.openLedger(id, DIGEST, PASSWORD);
        if (ledger.getLastAddConfirmed() != entries - 1) {
            throw new AssertionError("ledger " + id + " ends at entry " + ledger.getLastAddConfirmed());
        }
        List<String> found = new ArrayList<>();
        for (Enumeration<LedgerEntry> all = ledger.readEntries(0, entries - 1); all.hasMoreElements(); ) {
            found.add(new String(all.nextElement().getEntry(), StandardCharsets.US_ASCII));
        }
        for (int number = 1; number <= entries; number++) {
            if (!found.get(number - 1).equals(number + "\n")) {
                throw new AssertionError("ledger " + id + " has " + found.get(number - 1) + " as its number " + number);
            }
        }
        ledger.close();
    }
}
