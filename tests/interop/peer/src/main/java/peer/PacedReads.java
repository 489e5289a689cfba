package peer;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.CountingBookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Random single reads of one closed ledger in open loop: --rate each second whatever happens, at most --readers under way,
 * latency from when a read was due. Prints the lines of "bindery bench read --log".
 */
public final class PacedReads {
    private final List<String> lines = new ArrayList<>();

    private synchronized void log(String format, Object... args) {
        lines.add(String.format(Locale.ROOT, format, args));
    }

    public static void main(String[] args) throws Exception {
        Opts o = new Opts(args, Set.of("zk", "ledgers-root", "ledger", "digest", "rate", "readers", "seconds", "read-timeout"),
                Set.of("v2", "reorder"));
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + o.str("zk", "127.0.0.1:2181") + o.str("ledgers-root", "/ledgers"));
        conf.setUseV2WireProtocol(o.flag("v2"));
        conf.setThrottleValue(0);
        conf.setReadEntryTimeout(o.num("read-timeout", 5));
        conf.setReorderReadSequenceEnabled(o.flag("reorder"));
        int rate = o.num("rate", 1000);
        int readers = o.num("readers", 4000);
        long count = (long) rate * o.num("seconds", 10);

        PacedReads log = new PacedReads();
        CountingBookKeeper bk = CountingBookKeeper.connect(conf);
        LedgerHandle ledger = bk.openLedgerNoRecovery(o.num("ledger", 0), BookKeeper.DigestType.valueOf(o.str("digest", "CRC32C")),
                "peer".getBytes());
        int entries = Math.toIntExact(ledger.getLastAddConfirmed() + 1);
        long wallNanos = TimeUnit.MILLISECONDS.toNanos(System.currentTimeMillis());
        long begin = System.nanoTime();

        Thread looker = new Thread(() -> {
            try {
                while (true) {
                    double at = (wallNanos + System.nanoTime() - begin) / 1e9;
                    bk.sent.forEach((bookie, sent) -> log.log("bookie %.3f %s - %d", at, bookie, sent.sum()));
                    log.log("reads %.3f %d -", at, bk.speculative());
                    Thread.sleep(100);
                }
            } catch (InterruptedException e) {
                // over
            }
        });
        looker.start();

        Semaphore free = new Semaphore(readers);
        SplittableRandom random = new SplittableRandom(42);
        for (long turn = 0; turn < count; turn++) {
            long due = begin + turn * 1_000_000_000L / rate;
            long wait = due - System.nanoTime();
            if (wait > 0) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            free.acquire();
            long entry = random.nextInt(entries);
            ledger.asyncReadEntries(entry, entry, (rc, handle, read, ctx) -> {
                double ms = (System.nanoTime() - due) / 1e6;
                if (rc == 0) {
                    read.nextElement().getEntryBuffer().release();
                }
                log.log("call %.6f %.3f %s", (wallNanos + due - begin) / 1e9, ms, rc == 0 ? "ok" : String.valueOf(rc));
                free.release();
            }, null);
        }
        free.tryAcquire(readers, 15, TimeUnit.SECONDS);
        looker.interrupt();
        looker.join();
        synchronized (log) {
            log.lines.forEach(System.out::println);
        }
        System.out.flush();
        System.exit(0);
    }
}
