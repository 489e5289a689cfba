package peer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiFunction;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * The Java client on ledgers that move to object storage: writes ledgers and a list of them (--write FILE), later reads all of
 * them and compares every byte (--read FILE). With --seconds the entries are spread over that time. With --as FILE it creates ledgers
 * of the ids that are in that list, which must have been deleted. One JSON line says how much and how fast; the first difference ends it with code 1.
 */
public final class Tiered {
    private static final byte[] PASSWORD = "tiered".getBytes(StandardCharsets.UTF_8);
    private static final int IN_FLIGHT = 32;
    private static final int READ_AT_ONCE = 16;

    private static int size(long entry, int most) {
        // Sizes differ, so that an entry in the place of another is seen.
        return (int) (most - entry % 7);
    }

    /** A ledger to write to, and how an entry is added to it. */
    private record Target(ReadHandle handle, BiFunction<Long, byte[], CompletableFuture<Long>> adds) implements AutoCloseable {
        @Override
        public void close() throws Exception {
            handle.close();
        }
    }

    /** Creates a ledger, of this id unless it is null. */
    private static Target create(CreateBuilder builder, Long id) throws Exception {
        if (id == null) {
            WriteHandle w = builder.execute().get();
            return new Target(w, (entry, payload) -> w.appendAsync(payload));
        }
        WriteAdvHandle w = builder.makeAdv().withLedgerId(id).execute().get();
        return new Target(w, (entry, payload) -> w.writeAsync(entry, ByteBuffer.wrap(payload)));
    }

    private static long write(BookKeeper bk, Long id, int ensemble, int copies, int ack, long entries, int entryBytes, int seconds) throws Exception {
        long t0 = System.nanoTime();
        CreateBuilder builder = bk.newCreateLedgerOp().withEnsembleSize(ensemble).withWriteQuorumSize(copies).withAckQuorumSize(ack)
                .withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                .withCustomMetadata(Map.of("application", "tiered".getBytes(StandardCharsets.UTF_8)));
        try (Target w = create(builder, id)) {
            long ledger = w.handle().getId();
            Semaphore window = new Semaphore(IN_FLIGHT);
            CompletableFuture<Void> failed = new CompletableFuture<>();
            for (long e = 0; e < entries; e++) {
                long due = t0 + (long) (seconds * 1e9 * e / entries) - System.nanoTime();
                if (due > 1_000_000) {
                    Thread.sleep(due / 1_000_000);
                }
                window.acquire();
                if (failed.isDone()) {
                    break;
                }
                w.adds().apply(e, Payload.make(ledger, e, size(e, entryBytes))).whenComplete((added, error) -> {
                    if (error != null) {
                        failed.completeExceptionally(error);
                    }
                    window.release();
                });
            }
            window.acquire(IN_FLIGHT);
            if (failed.isDone()) {
                failed.get();
            }
            return ledger;
        }
    }

    private static void read(BookKeeper bk, long ledger, long entries, int entryBytes, AtomicLong bytes) throws Exception {
        try (ReadHandle r = bk.newOpenLedgerOp().withLedgerId(ledger).withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                .execute().get()) {
            if (r.getLastAddConfirmed() != entries - 1) {
                throw new IllegalStateException("ledger " + ledger + " ends at " + r.getLastAddConfirmed() + ", not at " + (entries - 1));
            }
            for (long e = 0; e < entries; e += READ_AT_ONCE) {
                long last = Math.min(entries, e + READ_AT_ONCE) - 1;
                try (LedgerEntries some = r.read(e, last)) {
                    long next = e;
                    for (LedgerEntry entry : some) {
                        byte[] got = entry.getEntryBytes();
                        if (entry.getEntryId() != next || !Arrays.equals(Payload.make(ledger, next, size(next, entryBytes)), got)) {
                            throw new IllegalStateException("entry " + next + " of ledger " + ledger + " differs");
                        }
                        bytes.addAndGet(got.length);
                        next++;
                    }
                    if (next != last + 1) {
                        throw new IllegalStateException("ledger " + ledger + ": a read up to " + last + " ended before " + next);
                    }
                }
            }
        }
    }

    private static <T> List<T> all(List<Callable<T>> tasks) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(Math.min(64, tasks.size()));
        try {
            List<T> results = new ArrayList<>();
            for (Future<T> f : threads.invokeAll(tasks)) {
                results.add(f.get());
            }
            return results;
        } finally {
            threads.shutdownNow();
        }
    }

    public static void main(String[] args) throws IOException {
        Opts o = new Opts(args, Set.of("zk", "ledgers-root", "write", "read", "as", "ledgers", "mib", "entry-bytes", "ensemble", "copies", "ack",
                "protocol", "seconds"), Set.of());
        int entryBytes = o.num("entry-bytes", 16384);
        List<Long> ids = new ArrayList<>();
        if (o.str("as", null) != null) {
            for (String line : Files.readAllLines(Path.of(o.str("as", null)))) {
                ids.add(Long.parseLong(line.split(" ")[0]));
            }
        }
        int ledgers = ids.isEmpty() ? o.num("ledgers", 16) : ids.size();
        long entries = Math.max(1, ((long) o.num("mib", 64) << 20) / ledgers / entryBytes);
        AtomicLong bytes = new AtomicLong();
        long t0 = System.nanoTime();
        try {
            var conf = RawClient.conf(o.str("protocol", "v2").equals("v2"));
            conf.setMetadataServiceUri("zk+hierarchical://" + o.str("zk", "127.0.0.1:2181") + o.str("ledgers-root", "/ledgers"));
            conf.setReadEntryTimeout(30);
            try (BookKeeper bk = BookKeeper.newBuilder(conf).build()) {
                if (o.str("write", null) != null) {
                    List<Callable<String>> tasks = new ArrayList<>();
                    for (int i = 0; i < ledgers; i++) {
                        Long id = ids.isEmpty() ? null : ids.get(i);
                        tasks.add(() -> write(bk, id, o.num("ensemble", 3), o.num("copies", o.num("ensemble", 3)), o.num("ack", 2), entries, entryBytes, o.num("seconds", 0)) + " " + entries);
                    }
                    Files.write(Path.of(o.str("write", null)), all(tasks));
                    for (long e = 0; e < entries; e++) {
                        bytes.addAndGet((long) size(e, entryBytes) * ledgers);
                    }
                } else {
                    List<Callable<Void>> tasks = new ArrayList<>();
                    for (String line : Files.readAllLines(Path.of(o.str("read", null)))) {
                        String[] words = line.split(" ");
                        ledgers = tasks.size() + 1;
                        tasks.add(() -> {
                            read(bk, Long.parseLong(words[0]), Long.parseLong(words[1]), entryBytes, bytes);
                            return null;
                        });
                    }
                    all(tasks);
                }
            }
            double seconds = (System.nanoTime() - t0) / 1e9;
            System.out.println(new Json().put("ledgers", ledgers).put("bytes", bytes.get()).put("seconds", seconds)
                    .put("mb_per_second", bytes.get() / seconds / 1e6));
        } catch (Exception e) {
            System.err.println("tiered: " + e);
            System.exit(1);
        }
        System.exit(0);
    }
}
