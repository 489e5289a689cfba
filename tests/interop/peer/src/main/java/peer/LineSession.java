package peer;

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * A Java client that takes orders on standard input, one a line, and answers each with a line. Entries are the lines of a
 * file, each with its newline, as "bindery ledger append" makes them.
 *
 * <pre>
 * create E QW QA     ok LEDGER
 * add ID FILE        ok ENTRIES: all acknowledged
 * flow ID FILE       ok: adds one each millisecond or so from now on, until the end of the file or a failure
 * flowed ID          ok LAST CODE: waits for its end; the last acknowledged entry, and why it ended, 0 for the end of the file
 * close ID           ok LAST
 * delete ID          ok
 * read ID FILE       ok LAST: opens with recovery, writes all entries to FILE, whose bytes are the ledger's length
 * recovered ID FILE  the same of a ledger that a Java client recovers or recovered: its length may be larger (an entry behind the end)
 * peek ID FILE       ok LAC: the same without recovery, up to the LAC that came with entries
 * lac ID             ok LAC: without recovery, written by itself (explicit) or with entries
 * </pre>
 */
public final class LineSession {
    private static final byte[] PASSWORD = "interop".getBytes();
    private static final int OUTSTANDING = 500;

    /** Adds under way. */
    private static final class Flow {
        final AtomicLong last = new AtomicLong(-1);
        final AtomicInteger code = new AtomicInteger();
        Thread thread;
    }

    private final BookKeeper bk;
    private final BookKeeper.DigestType digest;
    private final Map<Long, LedgerHandle> writers = new HashMap<>();
    private final Map<Long, Flow> flows = new HashMap<>();

    private LineSession(BookKeeper bk, BookKeeper.DigestType digest) {
        this.bk = bk;
        this.digest = digest;
    }

    /** Lines with their newlines. */
    private static List<byte[]> lines(String file) throws Exception {
        byte[] all = Files.readAllBytes(Path.of(file));
        List<byte[]> lines = new ArrayList<>();
        int begin = 0;
        for (int i = 0; i < all.length; i++) {
            if (all[i] == '\n') {
                lines.add(java.util.Arrays.copyOfRange(all, begin, i + 1));
                begin = i + 1;
            }
        }
        return lines;
    }

    private Flow start(long id, String file, long pauseMicros) throws Exception {
        LedgerHandle writer = writers.get(id);
        List<byte[]> lines = lines(file);
        Flow flow = new Flow();
        Semaphore free = new Semaphore(OUTSTANDING);
        flow.thread = new Thread(() -> {
            try {
                for (byte[] line : lines) {
                    if (flow.code.get() != 0) {
                        break;
                    }
                    free.acquire();
                    writer.asyncAddEntry(line, (rc, handle, entry, ctx) -> {
                        if (rc == 0) {
                            flow.last.accumulateAndGet(entry, Math::max);
                        } else {
                            flow.code.compareAndSet(0, rc);
                        }
                        free.release();
                    }, null);
                    if (pauseMicros > 0) {
                        TimeUnit.MICROSECONDS.sleep(pauseMicros);
                    }
                }
                if (!free.tryAcquire(OUTSTANDING, 60, TimeUnit.SECONDS)) {
                    flow.code.compareAndSet(0, -9999);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        });
        flow.thread.start();
        return flow;
    }

    private String read(long id, String file, boolean recover, boolean isExact) throws Exception {
        LedgerHandle reader = recover ? bk.openLedger(id, digest, PASSWORD) : bk.openLedgerNoRecovery(id, digest, PASSWORD);
        long last = reader.getLastAddConfirmed();
        long bytes = 0;
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(Path.of(file)))) {
            for (long first = 0; first <= last; first += 1000) {
                Enumeration<LedgerEntry> entries = reader.readEntries(first, Math.min(last, first + 999));
                while (entries.hasMoreElements()) {
                    byte[] entry = entries.nextElement().getEntry();
                    out.write(entry);
                    bytes += entry.length;
                }
            }
        }
        if (recover && (isExact ? bytes != reader.getLength() : bytes > reader.getLength())) {
            throw new IllegalStateException("the length is " + reader.getLength() + ", the entries have " + bytes);
        }
        reader.close();
        return String.valueOf(last);
    }

    private String run(String[] order) throws Exception {
        if (order[0].equals("create")) {
            LedgerHandle writer = bk.createLedger(Integer.parseInt(order[1]), Integer.parseInt(order[2]), Integer.parseInt(order[3]),
                    digest, PASSWORD);
            writers.put(writer.getId(), writer);
            return String.valueOf(writer.getId());
        }
        long id = Long.parseLong(order[1]);
        switch (order[0]) {
            case "add": {
                Flow flow = start(id, order[2], 0);
                flow.thread.join();
                if (flow.code.get() != 0) {
                    throw BKException.create(flow.code.get());
                }
                return String.valueOf(flow.last.get() + 1);
            }
            case "flow":
                flows.put(id, start(id, order[2], 800));
                return "";
            case "flowed": {
                Flow flow = flows.get(id);
                flow.thread.join();
                return flow.last.get() + " " + flow.code.get();
            }
            case "close":
                writers.get(id).close();
                return String.valueOf(writers.get(id).getLastAddConfirmed());
            case "delete":
                bk.deleteLedger(id);
                return "";
            case "read":
                return read(id, order[2], true, true);
            case "recovered":
                return read(id, order[2], true, false);
            case "peek":
                return read(id, order[2], false, false);
            case "lac": {
                try (LedgerHandle reader = bk.openLedgerNoRecovery(id, digest, PASSWORD)) {
                    return String.valueOf(Math.max(reader.readLastConfirmed(), reader.readExplicitLastConfirmed()));
                }
            }
            default:
                throw new IllegalArgumentException(order[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        Opts o = new Opts(args, Set.of("zk", "ledgers-root", "digest", "protocol"), Set.of());
        ClientConfiguration conf = RawClient.conf(o.str("protocol", "v2").equals("v2"));
        conf.setMetadataServiceUri("zk+hierarchical://" + o.str("zk", "127.0.0.1:2181") + o.str("ledgers-root", "/ledgers"));
        conf.setThrottleValue(0);
        LineSession session = new LineSession(new BookKeeper(conf), BookKeeper.DigestType.valueOf(o.str("digest", "CRC32C")));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ok");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String answer;
            try {
                answer = "ok " + session.run(order.split(" "));
            } catch (Exception e) {
                answer = "failed " + e + (e instanceof BKException b ? " (" + b.getCode() + ")" : "");
            }
            System.out.println(answer.strip());
        }
        System.exit(0);
    }
}
