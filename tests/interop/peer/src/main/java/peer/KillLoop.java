package peer;

import java.io.BufferedWriter;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32C;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * kill -9 of one bookie at random moments while Java clients add to it; the bookie is started again with the command line
 * it had, and every entry that was acknowledged must be read back. Acknowledgements are noted here, in another process
 * than the bookie's, and in a file (ledger, entry, size, CRC-32C), which is what is left to look at after a loss.
 *
 * <p>Ensemble 1: a ledger lives on this bookie alone, and a kill ends each ledger being written. Writers then go on with
 * new ledgers; the reader recovers the old ones after the restart. One kill in ten comes while the bookie is starting.
 * At the end all ledgers are read once more, through a fresh client, after a last kill.
 */
public final class KillLoop {
    private static final byte[] PASSWORD = "kill".getBytes();
    private static final int SIZE_MAX = 64 << 10;
    private static final int WRITERS = 4;
    private static final int BURST = 100;
    /** Ledgers written and not read yet, at the most: on a busy machine writers could stay ahead of the reader for ever. */
    private static final int UNREAD_MAX = 16;

    /** One ledger and the entries of it that were acknowledged. */
    private static final class Written {
        final long ledger;
        final long seed;
        final BitSet acked = new BitSet();

        Written(long ledger, long seed) {
            this.ledger = ledger;
            this.seed = seed;
        }

        int size(int entry) {
            SplittableRandom r = new SplittableRandom(seed + entry);
            return (int) Math.exp(r.nextDouble() * Math.log(SIZE_MAX + 1.0)) - 1;
        }

        byte[] payload(int entry) {
            return Payload.make(seed, entry, size(entry));
        }
    }

    private final String uri;
    private final Path pidFile;
    private final Path log;
    private final List<String> command;
    private final String readyHost;
    private final int readyPort;
    private final String readyPath;
    private final String readyText;
    private final SplittableRandom random;
    private final BufferedWriter ackFile;
    private final ConcurrentLinkedQueue<Written> ended = new ConcurrentLinkedQueue<>();
    private final AtomicLong acked = new AtomicLong();
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong verified = new AtomicLong();
    private volatile boolean stop;
    private volatile Throwable fault;
    private Process bookie;

    private KillLoop(Opts o, long seed) throws IOException {
        uri = "zk+hierarchical://" + o.str("zk", "127.0.0.1:2181") + "/ledgers";
        Path dir = Path.of(o.str("dir", "."));
        pidFile = dir.resolve("pid");
        log = dir.resolve("log");
        String pid = Files.readString(pidFile).trim();
        command = Arrays.asList(new String(Files.readAllBytes(Path.of("/proc", pid, "cmdline")), StandardCharsets.UTF_8).split("\0"));
        String[] hostPort = o.str("ready", "127.0.0.1:8080").split(":");
        readyHost = hostPort[0];
        readyPort = Integer.parseInt(hostPort[1]);
        readyPath = o.str("ready-path", "/api/v1/bookie/is_ready");
        readyText = o.str("ready-text", " 200 ");
        random = new SplittableRandom(seed);
        ackFile = Files.newBufferedWriter(Path.of(o.str("acks", "acks.txt")));
    }

    private ClientConfiguration conf(boolean v2) {
        ClientConfiguration c = RawClient.conf(v2);
        c.setMetadataServiceUri(uri);
        c.setThrottleValue(0);
        c.setAddEntryTimeout(10);
        c.setReadEntryTimeout(30);
        return c;
    }

    private boolean ready() {
        try (Socket s = new Socket()) {
            s.connect(new InetSocketAddress(readyHost, readyPort), 200);
            s.setSoTimeout(2000);
            OutputStream out = s.getOutputStream();
            out.write(("GET " + readyPath + " HTTP/1.0\r\n\r\n").getBytes());
            out.flush();
            InputStream in = s.getInputStream();
            return new String(in.readAllBytes(), StandardCharsets.UTF_8).contains(readyText);
        } catch (IOException e) {
            return false;
        }
    }

    private void spawn() throws IOException {
        bookie = new ProcessBuilder(command).redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile())).redirectInput(new File("/dev/null")).start();
        Files.writeString(pidFile, bookie.pid() + "\n");
    }

    private void kill9() throws Exception {
        long pid = Long.parseLong(Files.readString(pidFile).trim());
        ProcessHandle p = ProcessHandle.of(pid).orElseThrow(() -> new IllegalStateException("the bookie ended by itself, see " + log));
        if (bookie != null && !bookie.isAlive()) {
            throw new IllegalStateException("the bookie ended by itself with code " + bookie.exitValue() + ", see " + log);
        }
        p.destroyForcibly();
        try {
            p.onExit().get(10, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            throw new IllegalStateException("pid " + pid + " survived kill -9");
        }
    }

    /** Starts the bookie and gives the milliseconds until it says it is ready. */
    private double start() throws Exception {
        long t0 = System.nanoTime();
        spawn();
        while (!ready()) {
            if (!bookie.isAlive()) {
                throw new IllegalStateException("the bookie did not start again, code " + bookie.exitValue() + ", see " + log);
            }
            if (System.nanoTime() - t0 > 60_000_000_000L) {
                throw new IllegalStateException("the bookie is not ready 60 s after its start, see " + log);
            }
            Thread.sleep(2);
        }
        return (System.nanoTime() - t0) / 1e6;
    }

    private void write(int number) {
        SplittableRandom rnd = new SplittableRandom(number * 7919L + 1);
        try (BookKeeper bk = new BookKeeper(conf(number % 2 == 0))) {
            while (!stop) {
                if (ended.size() >= UNREAD_MAX) {
                    Thread.sleep(10);
                    continue;
                }
                LedgerHandle h;
                try {
                    h = bk.createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, PASSWORD);
                } catch (BKException e) {
                    Thread.sleep(20); // no bookie is registered just now
                    continue;
                }
                Written w = new Written(h.getId(), rnd.nextLong() >>> 1);
                Semaphore window = new Semaphore(2 * BURST);
                boolean[] failed = new boolean[1];
                for (int e = 0; e < 3000 && !failed[0] && !stop; e++) {
                    byte[] data = w.payload(e);
                    int entry = e;
                    window.acquire();
                    sent.incrementAndGet();
                    h.asyncAddEntry(data, (rc, lh, id, ctx) -> {
                        if (rc == 0) {
                            if (id != entry) {
                                fault = new IllegalStateException("add " + entry + " was acknowledged as " + id);
                            }
                            acked(w, entry, data);
                        } else {
                            failed[0] = true;
                        }
                        window.release();
                    }, null);
                    if (e % BURST == BURST - 1) {
                        Thread.sleep(30 + rnd.nextInt(40));
                    }
                }
                window.acquire(2 * BURST);
                ended.add(w); // not closed: its reader recovers it
                if (failed[0]) {
                    Thread.sleep(100); // the bookie is away: no need for a ledger each millisecond
                }
            }
        } catch (Throwable e) {
            fault = e;
        }
    }

    private void acked(Written w, int entry, byte[] data) {
        CRC32C crc = new CRC32C();
        crc.update(data);
        synchronized (ackFile) {
            w.acked.set(entry);
            acked.incrementAndGet();
            try {
                ackFile.write(w.ledger + " " + entry + " " + data.length + " " + Long.toHexString(crc.getValue()) + "\n");
            } catch (IOException e) {
                fault = e;
            }
        }
    }

    /** The client may take a connection that the kill has just closed, and there is no second copy to turn to: three times at most. */
    private LedgerEntries read(ReadHandle r, long first, long last) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                return r.readAsync(first, last).get(60, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                if (attempt == 3 || !(e.getCause() instanceof BKException.BKBookieHandleNotAvailableException)) {
                    throw e;
                }
                System.err.println("ledger " + r.getId() + ", entries " + first + " to " + last + ": " + e.getCause().getMessage() + ", again");
                Thread.sleep(1000);
            }
        }
    }

    private void verify(BookKeeper bk, Written w) throws Exception {
        int last = w.acked.length() - 1;
        try (ReadHandle r = bk.newOpenLedgerOp().withLedgerId(w.ledger).withPassword(PASSWORD).withDigestType(DigestType.CRC32C)
                .withRecovery(true).execute().get(60, TimeUnit.SECONDS)) {
            if (r.getLastAddConfirmed() < last) {
                throw new IllegalStateException("LOST: entry " + last + " of ledger " + w.ledger + " was acknowledged, recovery ended at "
                        + r.getLastAddConfirmed());
            }
            for (int first = 0; first <= last; first += 100) {
                try (LedgerEntries all = read(r, first, Math.min(last, first + 99))) {
                    for (LedgerEntry e : all) {
                        if (w.acked.get((int) e.getEntryId())) {
                            if (!Arrays.equals(w.payload((int) e.getEntryId()), e.getEntryBytes())) {
                                throw new IllegalStateException("WRONG BYTES: entry " + e.getEntryId() + " of ledger " + w.ledger);
                            }
                            verified.incrementAndGet();
                        }
                    }
                }
            }
        } catch (IllegalStateException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException("ledger " + w.ledger + " (acknowledged up to " + last + ") cannot be read: " + e, e);
        }
    }

    private void run(int kills, double pauseMax) throws Exception {
        List<Double> restarts = new ArrayList<>();
        List<Written> all = new ArrayList<>();
        List<Thread> writers = new ArrayList<>();
        for (int i = 0; i < WRITERS; i++) {
            int n = i;
            Thread t = new Thread(() -> write(n), "writer-" + i);
            t.setDaemon(true);
            t.start();
            writers.add(t);
        }
        int done = 0;
        int pauses = 0;
        int fruitful = 0;
        List<String> slow = new ArrayList<>();
        try (BookKeeper reader = new BookKeeper(conf(true))) {
            while (done < kills) {
                long before = acked.get();
                Thread.sleep((long) (random.nextDouble() * pauseMax * 1000));
                kill9();
                done++;
                pauses++;
                fruitful += acked.get() > before ? 1 : 0;
                boolean twice = random.nextInt(10) == 0 && done < kills;
                if (twice) {
                    spawn();
                    Thread.sleep(random.nextInt(150));
                    if (bookie.isAlive()) {
                        kill9();
                        done++;
                    } else {
                        throw new IllegalStateException("the bookie ended while starting, code " + bookie.exitValue() + ", see " + log);
                    }
                }
                restarts.add(start());
                double last = restarts.get(restarts.size() - 1);
                if (last > 1000) {
                    slow.add(String.format("kill %d%s: %.0f ms until ready, at %s", done, twice ? " (the one before came while it was starting)"
                            : "", last, java.time.Instant.now()));
                }
                for (int unread = ended.size(); unread > 0; unread--) {
                    Written w = ended.remove();
                    verify(reader, w);
                    all.add(w);
                }
                if (fault != null) {
                    throw new IllegalStateException("writer: " + fault, fault);
                }
                synchronized (ackFile) {
                    ackFile.flush();
                }
                if (done % 20 < 2) {
                    System.err.println("kills " + done + " acked " + acked + " verified " + verified);
                }
            }
        }
        stop = true;
        for (Thread t : writers) {
            t.join(60_000);
        }
        all.addAll(ended);
        kill9();
        restarts.add(start());
        long first = verified.getAndSet(0);
        try (BookKeeper reader = new BookKeeper(conf(false))) {
            for (Written w : all) {
                verify(reader, w);
            }
        }
        if (verified.get() != acked.get()) {
            throw new IllegalStateException("acknowledged " + acked + " entries, read " + verified);
        }
        // Some pauses are shorter than clients need to come back.
        if (fruitful * 3 < pauses || acked.get() == 0) {
            throw new IllegalStateException("before " + fruitful + " of " + pauses + " kills something was acknowledged: this run shows little");
        }
        slow.forEach(x -> System.out.println("slow restart, " + x));
        restarts.sort(null);
        System.out.printf("kills=%d ledgers=%d sent=%d acked=%d read_after_restart=%d read_at_end=%d lost=0 restart_ms p50=%.0f p99=%.0f max=%.0f "
                + "(%d restarts)%n", done + 1, all.size(), sent.get(), acked.get(), first, verified.get(), at(restarts, 0.5),
                at(restarts, 0.99), restarts.get(restarts.size() - 1), restarts.size());
    }

    private static double at(List<Double> sorted, double q) {
        return sorted.get((int) Math.min(sorted.size() - 1, Math.ceil(q * sorted.size()) - 1));
    }

    public static void main(String[] args) {
        Opts o = new Opts(args, Set.of("zk", "dir", "ready", "ready-path", "ready-text", "kills", "pause-max", "seed", "acks"), Set.of());
        long seed = Long.parseLong(o.str("seed", "1"));
        try {
            KillLoop k = new KillLoop(o, seed);
            try {
                k.run(o.num("kills", 200), Double.parseDouble(o.str("pause-max", "2")));
            } finally {
                k.ackFile.close();
            }
        } catch (Throwable e) {
            System.out.println("FAILED kill seed=" + seed + ": " + e.getMessage());
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
