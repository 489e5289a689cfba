package peer;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.zip.CRC32C;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The parts of tests/interop/bad-input that need more than a shell. One action a run:
 * fill (adds entries, prints the ledger id), check (reads them back), bombs and garbage (what no client sends),
 * wrong-key (requests with another ledger's key), newer (makes a file look like one of a later release).
 */
public final class BadInput {
    private static final byte[] PASSWORD = "bad-input".getBytes();
    private static final int FRAME_MAX = 5 * 1024 * 1024;

    private static BookKeeper client(Opts o) throws Exception {
        ClientConfiguration c = new ClientConfiguration();
        c.setMetadataServiceUri("zk+hierarchical://" + o.str("zk", "") + "/ledgers");
        c.setReadEntryTimeout(10);
        return new BookKeeper(c);
    }

    private static void require(boolean ok, String what) {
        if (!ok) {
            throw new IllegalStateException(what);
        }
    }

    private static void fill(Opts o) throws Exception {
        try (BookKeeper bk = client(o)) {
            LedgerHandle h = bk.createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, PASSWORD);
            Payload p = new Payload(7, o.num("entries", 200), 8 << 20);
            for (int e = 0; e < p.count(); e++) {
                h.addEntry(p.of(e));
            }
            h.close();
            System.out.println(h.getId());
        }
    }

    private static void check(Opts o) throws Exception {
        try (BookKeeper bk = client(o)) {
            Payload p = new Payload(7, o.num("entries", 200), 8 << 20);
            LedgerHandle h = bk.openLedger(Long.parseLong(o.str("ledger", "")), BookKeeper.DigestType.CRC32C, PASSWORD);
            require(h.getLastAddConfirmed() == p.count() - 1, "the ledger ends at " + h.getLastAddConfirmed());
            for (int e = 0; e < p.count(); e++) {
                LedgerEntry entry = h.readEntries(e, e).nextElement();
                String fault = p.fault(e, entry.getEntry());
                require(fault == null, fault);
            }
            System.out.println(p.count() + " entries read back");
        }
    }

    private static Socket connect(Opts o) throws IOException {
        String[] hp = o.str("bookie", "").split(":");
        Socket s = new Socket(hp[0], Integer.parseInt(hp[1]));
        s.setSoTimeout(5000);
        return s;
    }

    /** Sends the bytes; the server must close the connection without an answer. */
    private static void mustClose(Opts o, String what, byte[] bytes) throws IOException {
        try (Socket s = connect(o)) {
            try {
                OutputStream out = s.getOutputStream();
                out.write(bytes);
                out.flush();
                InputStream in = s.getInputStream();
                int got = in.read();
                require(got < 0, what + ": the bookie answered");
            } catch (SocketTimeoutException e) {
                throw new IllegalStateException(what + ": the connection is still open after 5 s");
            } catch (IOException e) {
                // reset: closed as well
            }
        }
        System.out.println("closed without an answer: " + what);
    }

    private static byte[] frame(int length, int... payload) {
        ByteBuffer b = ByteBuffer.allocate(4 + payload.length).putInt(length);
        for (int x : payload) {
            b.put((byte) x);
        }
        return b.array();
    }

    private static void bombs(Opts o) throws Exception {
        mustClose(o, "frame of 4 GiB - 1", frame(-1, 2, 1, 0, 0));
        mustClose(o, "frame of 2 GiB - 1", frame(Integer.MAX_VALUE, 2, 1, 0, 0));
        mustClose(o, "negative length", frame(Integer.MIN_VALUE, 2, 1, 0, 0));
        mustClose(o, "one byte above the frame limit", frame(FRAME_MAX - 3, 2, 1, 0, 0));
        mustClose(o, "unknown v2 operation", frame(4, 2, 99, 0, 0));
        mustClose(o, "v2 add cut short", frame(10, 2, 1, 0, 0, 1, 2, 3, 4, 5, 6));
        mustClose(o, "v2 read cut short", frame(12, 2, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8));
        mustClose(o, "v3 frame that is no Request", frame(6, 0x0a, 0x7f, 1, 2, 3, 4));
        // the limit itself is allowed, so only the memory taken for what never arrives can be wrong
        long before = rss(o);
        List<Socket> open = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            Socket s = connect(o);
            s.getOutputStream().write(frame(FRAME_MAX - 4, 2, 1, 0, 0, 1, 2, 3));
            open.add(s);
        }
        Thread.sleep(1000);
        long after = rss(o);
        for (Socket s : open) {
            s.close();
        }
        System.out.println("100 frames announced at the limit and not sent: resident memory " + before + " -> " + after + " MiB");
        require(after - before < 100, "announced frames take memory before their bytes arrive");
    }

    private static long rss(Opts o) {
        return (long) Proc.statusMiB(Long.parseLong(o.str("pid", "0")), "VmRSS");
    }

    private static void garbage(Opts o) throws Exception {
        mustClose(o, "HTTP request", "GET / HTTP/1.1\r\nHost: x\r\n\r\n".getBytes());
        mustClose(o, "TLS hello", new byte[] {0x16, 3, 1, 2, 0, 1, 0, 1, (byte) 0xfc, 3, 3, 1, 2, 3});
        Random random = new Random(o.num("seed", 1));
        for (int i = 0; i < 200; i++) { // any bytes, some behind a plausible length; nothing may end the bookie
            byte[] bytes = new byte[1 + random.nextInt(20000)];
            random.nextBytes(bytes);
            if (i % 2 == 0 && bytes.length > 8) {
                ByteBuffer.wrap(bytes).putInt(bytes.length - 4);
                bytes[4] = (byte) (i % 4 == 0 ? 2 : 0x0a);
                bytes[5] = (byte) (i % 4 == 0 ? 1 + random.nextInt(7) : bytes[5]);
            }
            try (Socket s = connect(o)) {
                s.setSoTimeout(50);
                s.getOutputStream().write(bytes);
                s.getInputStream().read(new byte[1000]);
            } catch (IOException e) {
                // closed, or waiting for the rest of a frame
            }
        }
        System.out.println("200 connections with random bytes");
    }

    private static void wrongKey(Opts o) throws Exception {
        String[] hp = o.str("bookie", "").split(":");
        long ledger = Long.parseLong(o.str("ledger", ""));
        for (boolean v2 : new boolean[] {true, false}) {
            try (RawClient c = new RawClient(RawClient.conf(v2), hp[0], Integer.parseInt(hp[1]))) {
                String p = v2 ? "v2 " : "v3 ";
                int add = c.add(ledger, 100000, -1, 1, new byte[1], "bad-input", "other", "CRC32C", 0, WriteFlag.NONE).code();
                int recovery = c.add(ledger, 0, -1, 1, new byte[1], "bad-input", "other", "CRC32C", 6, WriteFlag.NONE).code();
                int fence = c.read(ledger, -1, 1, "other").code();
                int lac = c.writeLac(ledger, 5, "bad-input", "other", "CRC32C").code();
                System.out.println(p + "add " + add + ", recovery add " + recovery + ", fence " + fence + ", write LAC " + lac);
                require(add == -102 && recovery == -102 && fence == -102 && lac == -102,
                        p + "a wrong master key must be refused with -102 (unauthorised) each time");
                require(c.read(ledger, 100000, 0, null).code() == -13, p + "the refused entry is there");
            }
        }
    }

    /** Sets the format version of a block with its CRC-32C at the end to 99, in the byte order the file has. */
    private static void newer(Opts o) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(o.str("file", ""), "rw")) {
            byte[] block = new byte[4096];
            f.readFully(block);
            for (ByteOrder order : new ByteOrder[] {ByteOrder.BIG_ENDIAN, ByteOrder.LITTLE_ENDIAN}) {
                ByteBuffer b = ByteBuffer.wrap(block).order(order);
                int version = b.getInt(8);
                if (version >= 1 && version < 99 && b.getInt(4092) == crc(block)) {
                    b.putInt(8, 99);
                    b.putInt(4092, crc(block));
                    f.seek(0);
                    f.write(block);
                    return;
                }
            }
            throw new IllegalStateException("no header with a version and a good checksum in " + o.str("file", ""));
        }
    }

    private static int crc(byte[] block) {
        CRC32C c = new CRC32C();
        c.update(block, 0, 4092);
        return (int) c.getValue();
    }

    public static void main(String[] args) {
        Opts o = new Opts(args, Set.of("do", "zk", "bookie", "ledger", "entries", "pid", "seed", "file"), Set.of());
        try {
            switch (o.str("do", "")) {
                case "fill" -> fill(o);
                case "check" -> check(o);
                case "bombs" -> bombs(o);
                case "garbage" -> garbage(o);
                case "wrong-key" -> wrongKey(o);
                case "newer" -> newer(o);
                default -> throw new IllegalStateException("--do what?");
            }
        } catch (Throwable e) {
            System.out.println("FAILED: " + e.getMessage());
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
