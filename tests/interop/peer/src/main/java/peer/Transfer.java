package peer;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.Set;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * The Java client on a cluster whose metadata moves: writes ledgers and a list of them (--write FILE), later reads all of
 * them, byte by byte, and writes new ones, whose ids must not be known (--read FILE). One JSON line.
 */
public final class Transfer {
    private static final byte[] PASSWORD = "transfer".getBytes(StandardCharsets.UTF_8);
    private static final int ENTRIES = 100;

    private static byte[] entry(long ledger, int number) {
        return Payload.make(ledger, number, 500 + number);
    }

    private static long write(BookKeeper bk, boolean close) throws Exception {
        LedgerHandle w = bk.createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, PASSWORD);
        for (int i = 0; i < ENTRIES; i++) {
            w.addEntry(entry(w.getId(), i));
        }
        if (close) {
            w.close();
        }
        return w.getId();
    }

    private static void read(BookKeeper bk, long ledger) throws Exception {
        try (LedgerHandle r = bk.openLedger(ledger, BookKeeper.DigestType.CRC32C, PASSWORD)) {
            if (r.getLastAddConfirmed() != ENTRIES - 1) {
                throw new IllegalStateException("ledger " + ledger + " ends at " + r.getLastAddConfirmed());
            }
            Enumeration<LedgerEntry> all = r.readEntries(0, ENTRIES - 1);
            while (all.hasMoreElements()) {
                LedgerEntry e = all.nextElement();
                if (!Arrays.equals(entry(ledger, (int) e.getEntryId()), e.getEntry())) {
                    throw new IllegalStateException("entry " + e.getEntryId() + " of ledger " + ledger + " differs");
                }
            }
        }
    }

    public static void main(String[] args) {
        Opts o = new Opts(args, Set.of("zk", "ledgers-root", "write", "read", "count"), Set.of());
        int count = o.num("count", 20);
        List<Long> ids = new ArrayList<>();
        int reread = 0;
        try {
            var conf = RawClient.conf(true);
            conf.setMetadataServiceUri("zk+hierarchical://" + o.str("zk", "127.0.0.1:2181") + o.str("ledgers-root", "/ledgers"));
            long highest = -1;
            try (BookKeeper bk = new BookKeeper(conf)) {
                if (o.str("read", null) != null) {
                    for (String line : Files.readAllLines(Path.of(o.str("read", null)))) {
                        boolean isDeleted = line.endsWith(" deleted");
                        long ledger = Long.parseLong(line.split(" ")[0]);
                        highest = Math.max(highest, ledger);
                        if (!isDeleted) {
                            read(bk, ledger);
                            reread++;
                        } else if (bk.getLedgerManager().readLedgerMetadata(ledger).handle((m, e) -> e == null).get()) {
                            throw new IllegalStateException("ledger " + ledger + " was deleted, and is there");
                        }
                    }
                }
                for (int i = 0; i < count; i++) {
                    // The last one stays open, for recovery, before it one is deleted: its id must not come again.
                    long ledger = write(bk, i + 1 < count);
                    if (ledger <= highest) {
                        throw new IllegalStateException("ledger id " + ledger + " is not above " + highest + ", which was in use");
                    }
                    ids.add(ledger);
                }
                if (o.str("write", null) != null) {
                    long deleted = ids.get(count - 2);
                    bk.deleteLedger(deleted);
                    Files.writeString(Path.of(o.str("write", null)),
                            String.join("\n", ids.stream().map(id -> id + (id == deleted ? " deleted" : "")).toList()) + "\n");
                }
            }
        } catch (Throwable e) {
            e.printStackTrace();
            System.out.println(new Json().put("ok", false).put("failure", String.valueOf(e)));
            System.exit(1);
        }
        System.out.println(new Json().put("ok", true).put("reread", reread).put("written", ids.size()).put("first_id", ids.get(0))
                .put("last_id", ids.get(ids.size() - 1)));
        System.exit(0);
    }
}
