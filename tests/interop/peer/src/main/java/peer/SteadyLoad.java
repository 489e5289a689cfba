package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/**
 * A Java client that writes and reads all the time while a cluster changes, and that forgives nothing: one add, read, create, open or close
 * that fails, or one entry that is missing or altered, is a failure, named once and for all.
 *
 * <p>Written to: --open ledgers from the beginning to the end, one entry every --pause-ms each, and short ledgers, one after the other, each
 * closed at --short-entries. Read: all that is closed, again and again, through new handles and through handles that were opened before
 * anything changed; the ledgers that are open, through their writers, as Pulsar does, and by readers that do not recover. Half of the
 * ledgers have 3 copies on 3 bookies, half 2 copies on 3, all of them an ack quorum of 2.
 *
 * <p>One thing is forgiven, and counted: a handle of a closed ledger does not learn of other bookies, and a writer only with its next
 * ensemble change. A read through it may fail while all bookies that it knows of an entry are gone; the ledger is opened anew then.
 *
 * <p>It says "ready" when the --old ledgers, which are closed, and the first entries are written. Then orders come on standard input:
 * <pre>
 * phase     one line of JSON: adds, their latencies, reads, since the last one
 * roll      "rolled", when each ledger that was open is closed, and another one is written to in its place
 * stop      the same for the whole time; ends the writing, closes all ledgers
 * verify    one line of JSON: every entry of every ledger is read by a new client, and compared
 * </pre>
 * After a failure every answer is "failed" and what failed.
 */
public final class SteadyLoad {
    private static final byte[] PASSWORD = "interop".getBytes();
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final int OUTSTANDING = 50;
    private static final int BATCH = 500;

    private final Opts options;
    private final BookKeeper bk;
    private final BookKeeperAdmin admin;
    private final AtomicReference<String> failure = new AtomicReference<>();
    private final Recorder recent = new Recorder(3);
    private final Histogram whole = new Histogram(3);
    private final AtomicLong reads = new AtomicLong();
    private final AtomicLong tooOld = new AtomicLong();
    private final AtomicLong ledgersMade = new AtomicLong();
    private final AtomicInteger rolled = new AtomicInteger();
    /** What each ledger ends with, of those that are closed. */
    private final Map<Long, Long> closed = new ConcurrentHashMap<>();
    private final Map<BookieId, Long> lastAway = new ConcurrentHashMap<>();
    private final List<Thread> writers = new CopyOnWriteArrayList<>();
    private final List<Thread> readers = new CopyOnWriteArrayList<>();
    private final List<LedgerHandle> open = new CopyOnWriteArrayList<>();
    private volatile int rollsAsked;
    private volatile boolean isWriting = true;
    private volatile boolean isReading = true;

    private SteadyLoad(Opts options, BookKeeper bk) {
        this.options = options;
        this.bk = bk;
        admin = new BookKeeperAdmin(bk, RawClient.conf(options.flag("v2")));
    }

    private static BookKeeper client(Opts options) throws Exception {
        var conf = RawClient.conf(options.flag("v2"));
        // With the default of 5 s a cold JVM on a busy machine fails an add before anything has changed.
        conf.setAddEntryTimeout(30);
        conf.setReadEntryTimeout(30);
        conf.setMetadataServiceUri("zk+hierarchical://" + options.str("zk", "127.0.0.1:2181") + "/ledgers");
        return new BookKeeper(conf);
    }

    private static byte[] entry(long ledger, long number) {
        return Payload.make(ledger, number, 100 + (int) ((ledger * 31 + number * 17) % 900));
    }

    private void fail(String what, Throwable why) {
        String code = why instanceof BKException ? " (code " + ((BKException) why).getCode() + ")" : "";
        if (failure.compareAndSet(null, what + ": " + why + code)) {
            why.printStackTrace();
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private Thread start(List<Thread> threads, String what, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable e) {
                fail(what, e);
            }
        }, what);
        threads.add(thread);
        thread.start();
        return thread;
    }

    private LedgerHandle create() throws Exception {
        return create(ledgersMade.get() % 2 == 0 ? 3 : 2);
    }

    private LedgerHandle create(int copies) throws Exception {
        ledgersMade.getAndIncrement();
        return bk.createLedger(3, copies, 2, DIGEST, PASSWORD);
    }

    private void add(LedgerHandle writer, Semaphore free, long number) throws Exception {
        if (!free.tryAcquire(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("ledger " + writer.getId() + ": no add was answered for 120 s");
        }
        long begin = System.nanoTime();
        writer.asyncAddEntry(entry(writer.getId(), number), (rc, handle, id, ctx) -> {
            recent.recordValue((System.nanoTime() - begin) / 1000);
            if (rc != 0) {
                fail("add of entry " + number + " to ledger " + handle.getId(), BKException.create(rc));
            } else if (id != number) {
                fail("add to ledger " + handle.getId(), new IllegalStateException("entry " + number + " became " + id));
            }
            free.release();
        }, null);
    }

    /** Closes it when all adds are answered. */
    private void close(LedgerHandle writer, Semaphore free, long entries) throws Exception {
        if (!free.tryAcquire(OUTSTANDING, 120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("ledger " + writer.getId() + ": adds are not answered for 120 s");
        }
        writer.close();
        if (writer.getLastAddConfirmed() != entries - 1) {
            throw new IllegalStateException("ledger " + writer.getId() + " was closed at " + writer.getLastAddConfirmed() + ", not " + (entries - 1));
        }
        closed.put(writer.getId(), entries - 1);
    }

    private long writeShort(int entries) throws Exception {
        LedgerHandle writer = create();
        Semaphore free = new Semaphore(OUTSTANDING);
        for (int i = 0; i < entries && failure.get() == null; i++) {
            add(writer, free, i);
        }
        close(writer, free, entries);
        return writer.getId();
    }

    private void writeLong(int place, int pauseMs) throws Exception {
        int rolls = 0;
        while (isWriting && failure.get() == null) {
            LedgerHandle writer = open.get(place);
            Semaphore free = new Semaphore(OUTSTANDING);
            long entries = 0;
            for (; isWriting && rolls == rollsAsked && failure.get() == null; entries++) {
                add(writer, free, entries);
                Thread.sleep(pauseMs);
            }
            boolean goesOn = isWriting && failure.get() == null;
            if (goesOn) {
                open.set(place, create(writer.getLedgerMetadata().getWriteQuorumSize()));
                rolls++;
            }
            close(writer, free, entries);
            if (!goesOn) {
                return;
            }
            rolled.getAndIncrement();
        }
    }

    private String roll() throws Exception {
        int end = rolled.get() + open.size();
        rollsAsked++;
        for (int i = 0; rolled.get() < end && failure.get() == null; i++) {
            if (i == 12000) {
                throw new IllegalStateException("ledgers are not closed for 120 s");
            }
            Thread.sleep(10);
        }
        return "rolled";
    }

    private void compare(LedgerHandle reader, long first, long last) throws Exception {
        for (long from = first; from <= last; from += BATCH) {
            long next = from;
            Enumeration<LedgerEntry> entries = reader.readEntries(from, Math.min(last, from + BATCH - 1));
            while (entries.hasMoreElements()) {
                LedgerEntry got = entries.nextElement();
                if (got.getEntryId() != next || !Arrays.equals(got.getEntry(), entry(reader.getId(), next))) {
                    throw new IllegalStateException("entry " + next + " of ledger " + reader.getId() + " is not what was written");
                }
                next++;
            }
            if (next <= Math.min(last, from + BATCH - 1)) {
                throw new IllegalStateException("ledger " + reader.getId() + " has no entry " + next);
            }
            reads.addAndGet(next - from);
        }
    }

    /** Of a closed ledger. */
    private void compareWhole(BookKeeper by, long ledger, long last) throws Exception {
        try (LedgerHandle reader = by.openLedger(ledger, DIGEST, PASSWORD)) {
            if (reader.getLastAddConfirmed() != last) {
                throw new IllegalStateException("ledger " + ledger + " ends at " + reader.getLastAddConfirmed() + ", not " + last);
            }
            compare(reader, 0, last);
        }
    }

    /** Notes which bookies are away; one that only starts again may be back before the reader looks. */
    private void watch() throws Exception {
        Set<BookieId> seen = new HashSet<>();
        while (isReading && failure.get() == null) {
            Set<BookieId> running = new HashSet<>(admin.getAvailableBookies());
            running.addAll(admin.getReadOnlyBookies());
            seen.addAll(running);
            for (BookieId bookie : seen) {
                if (!running.contains(bookie)) {
                    lastAway.put(bookie, System.nanoTime());
                }
            }
            Thread.sleep(50);
        }
    }

    private boolean wasAway(BookieId bookie) {
        Long at = lastAway.get(bookie);
        return at != null && System.nanoTime() - at < TimeUnit.SECONDS.toNanos(30);
    }

    /** Whether all bookies that it names for an entry are away, or just were. */
    private boolean isTooOld(LedgerMetadata metadata) {
        for (List<BookieId> ensemble : metadata.getAllEnsembles().values()) {
            for (int first = 0; first < ensemble.size(); first++) {
                boolean isAway = true;
                for (int i = 0; i < metadata.getWriteQuorumSize(); i++) {
                    isAway &= wasAway(ensemble.get((first + i) % ensemble.size()));
                }
                if (isAway) {
                    return true;
                }
            }
        }
        return false;
    }

    /** False when the handle is too old for it. */
    private boolean compareOld(LedgerHandle handle) throws Exception {
        // A writer may learn more before the failure is looked at.
        LedgerMetadata known = handle.getLedgerMetadata();
        try {
            compare(handle, 0, handle.getLastAddConfirmed());
            return true;
        } catch (BKException e) {
            // A bookie that stops closes its port first.
            for (int i = 0; i < 100 && !isTooOld(known); i++) {
                Thread.sleep(100);
            }
            if (e.getCode() != BKException.Code.BookieHandleNotAvailableException || !isTooOld(known)) {
                throw e;
            }
            tooOld.incrementAndGet();
            return false;
        }
    }

    private void readAll(List<LedgerHandle> held) throws Exception {
        while (isReading && failure.get() == null) {
            for (Map.Entry<Long, Long> ledger : closed.entrySet()) {
                compareWhole(bk, ledger.getKey(), ledger.getValue());
            }
            for (int i = 0; i < held.size(); i++) {
                if (!compareOld(held.get(i))) {
                    held.set(i, bk.openLedger(held.get(i).getId(), DIGEST, PASSWORD));
                    compare(held.get(i), 0, held.get(i).getLastAddConfirmed());
                }
            }
            for (LedgerHandle writer : open) {
                compareOld(writer);
                try (LedgerHandle reader = bk.openLedgerNoRecovery(writer.getId(), DIGEST, PASSWORD)) {
                    compare(reader, 0, reader.getLastAddConfirmed());
                }
            }
            Thread.sleep(10);
        }
    }

    private Json figures(String name, Histogram latencies) {
        return new Json().put("load", name).put("adds", latencies.getTotalCount()).put("entries_read", reads.get())
                .put("ledgers", ledgersMade.get()).put("too_old", tooOld.get()).latency(latencies);
    }

    private String phase() {
        Histogram latencies = recent.getIntervalHistogram();
        whole.add(latencies);
        return figures("phase", latencies).toString();
    }

    private String stop() throws Exception {
        isWriting = false;
        for (Thread writer : writers) {
            writer.join();
        }
        isReading = false;
        for (Thread reader : readers) {
            reader.join();
        }
        whole.add(recent.getIntervalHistogram());
        return figures("whole", whole).toString();
    }

    private String verify() throws Exception {
        reads.set(0);
        try (BookKeeper another = client(options)) {
            for (Map.Entry<Long, Long> ledger : closed.entrySet()) {
                compareWhole(another, ledger.getKey(), ledger.getValue());
            }
        }
        long entries = closed.values().stream().mapToLong(last -> last + 1).sum();
        if (closed.size() != ledgersMade.get() || reads.get() != entries) {
            throw new IllegalStateException(closed.size() + " of " + ledgersMade.get() + " ledgers, " + reads.get() + " of " + entries + " entries");
        }
        return new Json().put("verified_ledgers", closed.size()).put("verified_entries", entries).toString();
    }

    private void begin() throws Exception {
        List<LedgerHandle> held = new CopyOnWriteArrayList<>();
        for (int i = 0; i < options.num("old", 20); i++) {
            held.add(bk.openLedger(writeShort(options.num("old-entries", 200)), DIGEST, PASSWORD));
        }
        for (int i = 0; i < options.num("open", 4); i++) {
            int place = i;
            open.add(create());
            start(writers, "writer of ledgers " + place, () -> writeLong(place, options.num("pause-ms", 10)));
        }
        start(writers, "writer of short ledgers", () -> {
            while (isWriting && failure.get() == null) {
                writeShort(options.num("short-entries", 100));
                Thread.sleep(options.num("short-pause-ms", 300));
            }
        });
        start(readers, "watch", this::watch);
        start(readers, "reader", () -> readAll(held));
    }

    public static void main(String[] args) throws Exception {
        Opts options = new Opts(args, Set.of("zk", "old", "old-entries", "open", "pause-ms", "short-entries", "short-pause-ms"), Set.of("v2"));
        SteadyLoad load = new SteadyLoad(options, client(options));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        String order = "begin";
        do {
            String answer = "";
            try {
                switch (order) {
                    case "begin" -> {
                        load.begin();
                        answer = "ready";
                    }
                    case "phase" -> answer = load.phase();
                    case "roll" -> answer = load.roll();
                    case "stop" -> answer = load.stop();
                    case "verify" -> answer = load.verify();
                    default -> throw new IllegalArgumentException(order);
                }
            } catch (Throwable e) {
                load.fail(order, e);
            }
            String failed = load.failure.get();
            System.out.println(failed == null ? answer : "failed " + failed.replace('\n', ' '));
            order = orders.readLine();
        } while (order != null);
        System.exit(0);
    }
}
