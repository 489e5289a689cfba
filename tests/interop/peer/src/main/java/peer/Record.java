package peer;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;
import org.apache.bookkeeper.proto.PerChannelBookieClient;
import org.apache.bookkeeper.tls.SecurityHandlerFactory;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * Records what the Java client and the Java bookie say to each other: one scenario for each operation and protocol, each
 * over fresh connections, strictly one request at a time, with fixed ledger ids, passwords and payloads, so that a second
 * recording gives the same bytes. Files: SCENARIO[-N].c2s.bin (client to server) and .s2c.bin, N counting the connections
 * of a scenario that opens more than one. Every reply is asserted here, so a recording cannot hold a failure by accident.
 *
 * <p>{@code --check} compares with the files instead of writing them. Three kinds of fields cannot repeat and are set to 0
 * before the comparison only: disk sizes in GET_BOOKIE_INFO, the time stamp of a long-poll answer, and the transaction ids
 * of the scenario with authentication over v3, which two threads of the client take, in either order. The answers of a
 * whole flow are compared without regard to their order.
 * {@code --ours} compares what our bookie answers with what the Java bookie answered, up to the order of protobuf fields.
 * {@code --unlike DIR} leaves out what is the same in DIR (for an older client).
 */
public final class Record {
    private static final int FENCE = 1;
    private static final int RECOVERY = 2;
    private static final int PRIORITY = 4;
    private static final int OK = 0;
    private static final int NO_LEDGER = -7;
    private static final int NO_ENTRY = -13;
    private static final int FENCED = -101;
    private static final int UNAUTHORIZED = -102;

    private final Map<String, byte[]> recorded = new TreeMap<>();
    private final Proxy proxy;
    private final AtomicLong txnIds;
    private final boolean ours;

    private Record(Proxy proxy, boolean ours) throws Exception {
        this.proxy = proxy;
        this.ours = ours;
        Field f = PerChannelBookieClient.class.getDeclaredField("txnIdGenerator");
        f.setAccessible(true);
        txnIds = (AtomicLong) f.get(null);
    }

    private interface Scenario {
        void run(RawClient c, boolean v2) throws Exception;
    }

    private void keep(String name) throws Exception {
        List<Proxy.Connection> all = proxy.take();
        all.removeIf(c -> c.toServer.size() == 0); // a v2 client connects before it decides to ask over v3
        if (all.isEmpty()) {
            throw new IllegalStateException(name + ": nothing was recorded");
        }
        for (int i = 0; i < all.size(); i++) {
            String file = all.size() == 1 ? name : name + "-" + (i + 1);
            recorded.put(file + ".c2s.bin", all.get(i).toServer.toByteArray());
            recorded.put(file + ".s2c.bin", all.get(i).toClient.toByteArray());
        }
    }

    private void raw(String name, ClientConfiguration conf, Scenario s) throws Exception {
        txnIds.set(0); // what a fresh process starts with
        try (RawClient c = new RawClient(conf, "127.0.0.1", proxy.port())) {
            s.run(c, conf.getUseV2WireProtocol());
        } catch (Exception e) {
            throw new IllegalStateException("scenario " + name + ": " + e.getMessage(), e);
        }
        keep(name);
    }

    private void raw(String name, boolean v2, Scenario s) throws Exception {
        raw(name, RawClient.conf(v2), s);
    }

    private static byte[] payload(long entry, int size) {
        byte[] b = new byte[size];
        for (int i = 0; i < size; i++) {
            b[i] = (byte) (i * 31 + entry);
        }
        return b;
    }

    private static RawClient.Reply expect(String what, int code, RawClient.Reply r) {
        if (r.code() != code) {
            throw new IllegalStateException(what + ": result " + r.code() + " instead of " + code);
        }
        return r;
    }

    private static void require(boolean ok, String what) {
        if (!ok) {
            throw new IllegalStateException(what);
        }
    }

    private static void fill(RawClient c, long ledger, int entries, String password) throws Exception {
        long length = 0;
        for (int e = 0; e < entries; e++) {
            byte[] p = payload(e, 10 * (e + 1));
            length += p.length;
            expect("add " + e, OK, c.add(ledger, e, e - 1, length, p, password, password, "CRC32C", 0, WriteFlag.NONE));
        }
    }

    private void scenarios(InetSocketAddress bookie, InetSocketAddress sorted) throws Exception {
        for (boolean v2 : new boolean[] {true, false}) {
            String p = v2 ? "v2-" : "v3-";
            long base = v2 ? 2000 : 3000;

            // the vectors of protocol reference section 1.8: ledger 1, empty password, "hello"
            raw(p + "add", v2, (c, x) -> {
                long l = x ? 1 : base + 1;
                expect("hello", OK, c.add(l, 0, -1, 5, "hello".getBytes(), "", "", "CRC32C", 0, WriteFlag.NONE));
                expect("empty", OK, c.add(l, 1, 0, 5, new byte[0], "", "", "CRC32C", 0, WriteFlag.NONE));
                expect("one byte", OK, c.add(l, 2, 1, 6, payload(2, 1), "", "", "CRC32C", 0, WriteFlag.NONE));
                expect("out of order", OK, c.add(l, 9, 1, 1006, payload(9, 1000), "", "", "CRC32C", 0, WriteFlag.NONE));
                expect("again", OK, c.add(l, 2, 1, 6, payload(2, 1), "", "", "CRC32C", 0, WriteFlag.NONE));
                expect("9000 bytes", OK, c.add(l, 10, 1, 10006, payload(10, 9000), "", "", "CRC32C", 0, WriteFlag.NONE));
            });
            long n = base + 10;
            for (String digest : new String[] {"CRC32", "CRC32C", "MAC", "DUMMY"}) {
                long l = n++;
                raw(p + "add-digest-" + digest.toLowerCase(), v2, (c, x) -> {
                    expect("add", OK, c.add(l, 0, -1, 5, "hello".getBytes(), "secret", "secret", digest, 0, WriteFlag.NONE));
                    byte[] e = expect("read", OK, c.read(l, 0, 0, null)).entry();
                    require(new String(e, e.length - 5, 5).equals("hello"), "read another entry back");
                });
            }
            raw(p + "add-recovery", v2, (c, x) -> {
                fill(c, base + 20, 1, "secret");
                expect("recovery", OK, c.add(base + 20, 1, 0, 20, payload(1, 10), "secret", "secret", "CRC32C", RECOVERY, WriteFlag.NONE));
                expect("recovery, high priority", OK, c.add(base + 20, 2, 1, 30, payload(2, 10), "secret", "secret", "CRC32C",
                        RECOVERY | PRIORITY, WriteFlag.NONE));
                expect("high priority", OK, c.add(base + 20, 3, 2, 40, payload(3, 10), "secret", "secret", "CRC32C", PRIORITY,
                        WriteFlag.NONE));
            });
            raw(p + "add-wrong-key", v2, (c, x) -> {
                fill(c, base + 21, 1, "secret");
                expect("add", UNAUTHORIZED, c.add(base + 21, 1, 0, 20, payload(1, 10), "secret", "wrong", "CRC32C", 0, WriteFlag.NONE));
            });
            raw(p + "add-fenced", v2, (c, x) -> {
                fill(c, base + 22, 2, "secret");
                expect("fence", OK, c.read(base + 22, -1, FENCE, "secret"));
                expect("add", FENCED, c.add(base + 22, 2, 1, 60, payload(2, 30), "secret", "secret", "CRC32C", 0, WriteFlag.NONE));
                expect("recovery add", OK, c.add(base + 22, 1, 0, 30, payload(1, 20), "secret", "secret", "CRC32C",
                        RECOVERY | PRIORITY, WriteFlag.NONE));
            });
            raw(p + "read", v2, (c, x) -> {
                fill(c, base + 23, 3, "secret");
                for (int e = 0; e < 3; e++) {
                    byte[] b = expect("read", OK, c.read(base + 23, e, 0, null)).entry();
                    byte[] want = payload(e, 10 * (e + 1));
                    require(Arrays.equals(want, Arrays.copyOfRange(b, b.length - want.length, b.length)), "wrong payload");
                }
                expect("last", OK, c.read(base + 23, -1, 0, null));
                expect("high priority", OK, c.read(base + 23, 1, PRIORITY, null));
                expect("no entry", NO_ENTRY, c.read(base + 23, 3, 0, null));
                expect("no ledger", NO_LEDGER, c.read(base + 999, 0, 0, null));
                expect("no ledger, last", NO_LEDGER, c.read(base + 999, -1, 0, null));
            });
            raw(p + "read-fence", v2, (c, x) -> {
                fill(c, base + 24, 3, "secret");
                expect("wrong key", UNAUTHORIZED, c.read(base + 24, -1, FENCE, "wrong"));
                expect("last", OK, c.read(base + 24, -1, FENCE, "secret"));
                expect("recovery read", OK, c.read(base + 24, 2, FENCE | PRIORITY, "secret"));
                expect("past the end", NO_ENTRY, c.read(base + 24, 3, FENCE | PRIORITY, "secret"));
                expect("unknown ledger", NO_ENTRY, c.read(base + 25, -1, FENCE, "secret"));
                expect("add after it", FENCED, c.add(base + 25, 0, -1, 1, payload(0, 1), "secret", "secret", "CRC32C", 0,
                        WriteFlag.NONE));
            });
            // WRITE_LAC, READ_LAC and GET_BOOKIE_INFO of a v2 client go over a second connection, which speaks v3
            raw(p + "explicit-lac", v2, (c, x) -> {
                // the Java bookie overwrites its own ENOLEDGER by ENOENTRY here
                expect("unknown ledger", ours ? NO_LEDGER : NO_ENTRY, c.readLac(base + 998));
                fill(c, base + 26, 3, "secret");
                require(expect("only entries", OK, c.readLac(base + 26)).entries().get(0).length == 0, "explicit LAC out of nothing");
                expect("write", OK, c.writeLac(base + 26, 2, "secret", "secret", "CRC32C"));
                require(expect("both", OK, c.readLac(base + 26)).entries().get(0).length > 0, "explicit LAC is missing");
                expect("wrong key", UNAUTHORIZED, c.writeLac(base + 26, 2, "secret", "wrong", "CRC32C"));
            });
            raw(p + "bookie-info", v2, (c, x) -> expect("info", OK, c.bookieInfo(3)));

            ClientConfiguration auth = RawClient.conf(v2);
            auth.setClientAuthProviderFactoryClass(TokenAuth.class.getName());
            raw(p + "auth", auth, (c, x) -> fill(c, base + 27, 1, "secret"));

            ClientConfiguration tls = RawClient.conf(v2);
            tls.setTLSProviderFactoryClass(NoTls.class.getName());
            raw(p + "start-tls-refused", tls, (c, x) -> {
                RawClient.Reply r = c.read(base + 28, 0, 0, null);
                require(r.code() != OK && r.code() != NO_LEDGER, "the connection went on without TLS: " + r.code());
            });
        }

        raw("v2-batch-read", true, (c, x) -> {
            fill(c, 2030, 6, "secret");
            batch(c, 0, 3, 100_000, 3);
            batch(c, 2, 100, 100_000, 4);
            batch(c, 0, 0, 100_000, 6);
            batch(c, 0, -1, 100_000, 6);
            batch(c, 0, 6, 1, 1);
            batch(c, 0, 6, 36 + 4 + 36 + 10, 1);
            batch(c, 0, 6, 36 + 2 * (4 + 36) + 10 + 20, 2);
            batch(c, 0, 6, 36 + 2 * (4 + 36) + 10 + 20 - 1, 1);
            expect("no entry", NO_ENTRY, c.batchRead(2030, 6, 3, 100_000, 0, null));
            expect("no ledger", NO_LEDGER, c.batchRead(2999, 0, 3, 100_000, 0, null));
            expect("wrong key", UNAUTHORIZED, c.batchRead(2030, 0, 3, 100_000, FENCE, "wrong"));
            expect("fence", OK, c.batchRead(2030, 4, 3, 100_000, FENCE | PRIORITY, "secret"));
            expect("add", FENCED, c.add(2030, 6, 5, 1000, payload(6, 1), "secret", "secret", "CRC32C", 0, WriteFlag.NONE));
        });
        raw("v3-add-deferred-sync", false, (c, x) -> {
            long length = 0;
            for (int e = 0; e < 3; e++) {
                length += 100;
                expect("add", OK, c.add(3040, e, -1, length, payload(e, 100), "secret", "secret", "CRC32C", 0,
                        EnumSet.of(WriteFlag.DEFERRED_SYNC)));
            }
            expect("force", OK, c.force(3040));
        });
        raw("v3-force-unknown-ledger", false, (c, x) -> expect("force", OK, c.force(3041)));
        raw("v3-long-poll", false, (c, x) -> {
            expect("unknown ledger", NO_LEDGER, c.longPoll(3997, -1, 1000, true));
            fill(c, 3042, 3, "secret");
            expect("already ahead", OK, c.longPoll(3042, 0, 5000, true));
            expect("entry of the new LAC", OK, c.longPoll(3042, -1, 5000, true));
            expect("time-out", OK, c.longPoll(3042, 1, 50, true));
        });
        proxy.retarget(sorted); // with DbLedgerStorage the Java bookie never answers this request
        raw("v3-list-of-entries", false, (c, x) -> {
            for (long e : new long[] {0, 1, 2, 5, 7, 9}) {
                expect("add", OK, c.add(3050, e, -1, 1, payload(e, 1), "secret", "secret", "CRC32C", 0, WriteFlag.NONE));
            }
            require(c.listOfEntries(3050).getTotalNumOfAvailableEntries() == 6, "wrong count in the list of entries");
            try {
                c.listOfEntries(3998);
                throw new IllegalStateException("a list of entries of an unknown ledger");
            } catch (BKException e) {
                require(e.getCode() == NO_LEDGER, "list of entries of an unknown ledger: " + e);
            }
        });
        proxy.retarget(bookie);
    }

    private static void batch(RawClient c, long first, int count, long size, int entries) throws Exception {
        RawClient.Reply r = expect("batch", OK, c.batchRead(2030, first, count, size, 0, null));
        require(r.entries().size() == entries, "batch of " + first + "," + count + "," + size + " has " + r.entries().size()
                + " entries instead of " + entries);
    }

    /** The life of a ledger through the public API: write, read, open with recovery beside a live writer. */
    private void flows(String zk, String root) throws Exception {
        ZooKeeper z = new ZooKeeper(zk, 10000, e -> { });
        try {
            // in this cluster the only bookie is the proxy; empty service info: the address is taken from the id
            z.create(root + "/available/127.0.0.1:" + proxy.port(), new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            for (boolean v2 : new boolean[] {true, false}) {
                txnIds.set(0);
                long ledger = v2 ? 2100 : 3100;
                ClientConfiguration conf = RawClient.conf(v2);
                conf.setMetadataServiceUri("zk+hierarchical://" + zk + root);
                conf.setRecoveryReadBatchSize(1);
                conf.setNumChannelsPerBookie(1);
                byte[] password = "secret".getBytes();
                try (BookKeeper writer = new BookKeeper(conf); BookKeeper reader = new BookKeeper(conf)) {
                    WriteAdvHandle w = writer.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                            .withDigestType(DigestType.CRC32C).withPassword(password).makeAdv().withLedgerId(ledger).execute().get();
                    for (int e = 0; e < 3; e++) {
                        w.write(e, payload(e, 10 * (e + 1)));
                    }
                    try (ReadHandle tail = reader.newOpenLedgerOp().withLedgerId(ledger).withPassword(password)
                            .withDigestType(DigestType.CRC32C).withRecovery(false).execute().get()) {
                        require(tail.getLastAddConfirmed() == 1, "LAC without recovery is " + tail.getLastAddConfirmed());
                    }
                    try (ReadHandle r = reader.newOpenLedgerOp().withLedgerId(ledger).withPassword(password)
                            .withDigestType(DigestType.CRC32C).withRecovery(true).execute().get()) {
                        require(r.getLastAddConfirmed() == 2, "LAC after recovery is " + r.getLastAddConfirmed());
                        for (int e = 0; e < 3; e++) {
                            try (LedgerEntries one = r.read(e, e)) {
                                require(Arrays.equals(payload(e, 10 * (e + 1)), one.getEntry(e).getEntryBytes()), "wrong payload");
                            }
                        }
                    }
                    try {
                        w.write(3, payload(3, 1));
                        throw new IllegalStateException("the fenced writer could add");
                    } catch (org.apache.bookkeeper.client.api.BKException e) {
                        require(e.getCode() == FENCED, "the fenced writer failed with " + e.getCode());
                    }
                } catch (Exception e) {
                    throw new IllegalStateException("flow " + (v2 ? "v2" : "v3") + ": " + e, e);
                }
                keep((v2 ? "v2" : "v3") + "-flow-recovery");
            }
        } finally {
            z.close();
        }
    }

    /** Authenticates with one token; a bookie without authentication answers for the "AuthDisabledPlugin". */
    public static final class TokenAuth implements ClientAuthProvider.Factory {
        @Override
        public void init(ClientConfiguration conf) {
        }

        @Override
        public String getPluginName() {
            return "TokenAuth";
        }

        @Override
        public ClientAuthProvider newProvider(ClientConnectionPeer peer, GenericCallback<Void> done) {
            return new ClientAuthProvider() {
                @Override
                public void init(GenericCallback<AuthToken> cb) {
                    cb.operationComplete(0, AuthToken.wrap("token".getBytes()));
                }

                @Override
                public void process(AuthToken m, GenericCallback<AuthToken> cb) {
                    done.operationComplete(0, null);
                }
            };
        }
    }

    /** Makes the client ask for TLS; the bookie refuses, so no handler is ever made. */
    public static final class NoTls implements SecurityHandlerFactory {
        @Override
        public String getHandlerName() {
            return "tls";
        }

        @Override
        public void init(NodeType type, @SuppressWarnings("rawtypes") AbstractConfiguration conf,
                io.netty.buffer.ByteBufAllocator allocator) {
        }

        @Override
        public io.netty.handler.ssl.SslHandler newTLSHandler() {
            throw new IllegalStateException("the bookie accepted TLS");
        }
    }

    /** Sets the varint fields at the given path of field numbers to 0, in each frame; changes only the copy returned. */
    private static byte[] mask(byte[] stream, int[]... paths) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(stream));
        while (in.available() > 0) {
            byte[] frame = new byte[in.readInt()];
            in.readFully(frame);
            for (int[] path : paths) {
                frame = mask(frame, path, 0);
            }
            new DataOutputStream(out).writeInt(frame.length);
            out.write(frame);
        }
        return out.toByteArray();
    }

    private static byte[] mask(byte[] message, int[] path, int depth) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        int[] at = {0};
        while (at[0] < message.length) {
            long tag = varint(message, at);
            int field = (int) (tag >>> 3);
            write(out, tag);
            switch ((int) (tag & 7)) {
                case 0 -> {
                    long v = varint(message, at);
                    write(out, field == path[depth] && depth == path.length - 1 ? 0 : v);
                }
                case 2 -> {
                    int len = (int) varint(message, at);
                    byte[] sub = Arrays.copyOfRange(message, at[0], at[0] + len);
                    at[0] += len;
                    if (field == path[depth] && depth < path.length - 1) {
                        sub = mask(sub, path, depth + 1);
                    }
                    write(out, sub.length);
                    out.write(sub);
                }
                default -> throw new IOException("wire type " + (tag & 7));
            }
        }
        return out.toByteArray();
    }

    /** Fields of v3 messages by number, and without the answer to READ_LAC of an unknown ledger, where we differ. */
    private static byte[] canonical(byte[] stream) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(stream));
        while (in.available() > 0) {
            byte[] frame = new byte[in.readInt()];
            in.readFully(frame);
            frame = frame[0] <= 2 ? frame : fieldsByNumber(frame, 0);
            boolean unknownLac = frame.length > 8 && frame[0] == 0x0a && frame[5] == 7 && (frame[9] == (byte) 0x92 || frame[9] == (byte) 0x93);
            if (!unknownLac) {
                out.write(frame);
            }
        }
        return out.toByteArray();
    }

    private static byte[] fieldsByNumber(byte[] message, int depth) throws IOException {
        record Part(long tag, byte[] bytes) { }
        List<Part> parts = new ArrayList<>();
        int[] at = {0};
        while (at[0] < message.length) {
            long tag = varint(message, at);
            ByteArrayOutputStream part = new ByteArrayOutputStream();
            write(part, tag);
            if ((tag & 7) == 0) {
                write(part, varint(message, at));
            } else {
                int len = (int) varint(message, at);
                byte[] sub = Arrays.copyOfRange(message, at[0], at[0] + len);
                at[0] += len;
                sub = depth == 0 ? fieldsByNumber(sub, 1) : sub;
                write(part, sub.length);
                part.write(sub);
            }
            if (depth > 0 || tag != (106 << 3 | 2)) { // ours has the (empty) startTLSResponse in a refusal too, Java's has not
                parts.add(new Part(tag, part.toByteArray()));
            }
        }
        parts.sort((x, y) -> Long.compare(x.tag, y.tag));
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (Part p : parts) {
            out.write(p.bytes);
        }
        return out.toByteArray();
    }

    private static long varint(byte[] b, int[] at) {
        long v = 0;
        for (int shift = 0;; shift += 7) {
            byte x = b[at[0]++];
            v |= (x & 0x7fL) << shift;
            if (x >= 0) {
                return v;
            }
        }
    }

    private static void write(ByteArrayOutputStream out, long v) {
        for (; (v & ~0x7fL) != 0; v >>>= 7) {
            out.write((int) (v & 0x7f | 0x80));
        }
        out.write((int) v);
    }

    private static byte[] comparable(String file, byte[] bytes) throws IOException {
        if (file.contains("bookie-info") && file.endsWith(".s2c.bin")) {
            return mask(bytes, new int[] {105, 2}, new int[] {105, 3});
        }
        if (file.contains("long-poll") && file.endsWith(".s2c.bin")) {
            return mask(bytes, new int[] {100, 6});
        }
        if (file.startsWith("v3-auth.")) {
            return mask(bytes, new int[] {1, 3});
        }
        if (file.contains("flow") && file.endsWith(".s2c.bin")) {
            return sorted(bytes); // requests of one flow are in flight together, and the bookie answers in any order
        }
        return bytes;
    }

    private static byte[] sorted(byte[] stream) throws IOException {
        List<byte[]> frames = new ArrayList<>();
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(stream));
        while (in.available() > 0) {
            byte[] frame = new byte[in.readInt()];
            in.readFully(frame);
            frames.add(frame);
        }
        frames.sort(Arrays::compareUnsigned);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (byte[] frame : frames) {
            new DataOutputStream(out).writeInt(frame.length);
            out.write(frame);
        }
        return out.toByteArray();
    }

    private void dropThoseIn(Path dir) throws IOException {
        for (String name : List.copyOf(recorded.keySet())) {
            Path f = dir.resolve(name);
            if (Files.exists(f) && Arrays.equals(comparable(name, Files.readAllBytes(f)), comparable(name, recorded.get(name)))) {
                recorded.remove(name);
            }
        }
    }

    private int check(Path dir) throws IOException {
        Set<String> names = new TreeSet<>(recorded.keySet());
        try (Stream<Path> files = Files.list(dir)) {
            files.map(f -> f.getFileName().toString()).filter(f -> f.matches("v[23]-.*\\.bin")).forEach(names::add);
        }
        int bad = 0;
        for (String name : names) {
            byte[] now = recorded.get(name);
            String fault = null;
            if (now == null) {
                fault = "no scenario records it any more";
            } else if (!Files.exists(dir.resolve(name))) {
                fault = "not in " + dir;
            } else {
                byte[] a = comparable(name, Files.readAllBytes(dir.resolve(name)));
                byte[] b = comparable(name, now);
                if (ours && name.endsWith(".s2c.bin")) {
                    a = canonical(a);
                    b = canonical(b);
                }
                int at = Arrays.mismatch(a, b);
                if (at >= 0) {
                    fault = "differs at byte " + at + " (" + a.length + " bytes kept, " + b.length + " recorded now)";
                }
            }
            if (fault != null) {
                bad++;
                System.out.println(name + ": " + fault);
            }
        }
        return bad;
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable e) { // the client library's threads would keep a failed process alive
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        Opts o = new Opts(args, Set.of("zk", "bookie", "sorted-bookie", "flow-root", "out", "unlike"), Set.of("check", "ours"));
        Path out = Path.of(o.str("out", "golden"));
        InetSocketAddress bookie = new InetSocketAddress("127.0.0.1", o.num("bookie", 3181));
        InetSocketAddress sorted = new InetSocketAddress("127.0.0.1", o.num("sorted-bookie", 3182));
        try (Proxy proxy = new Proxy(bookie)) {
            Record r = new Record(proxy, o.flag("ours"));
            r.scenarios(bookie, sorted);
            r.flows(o.str("zk", "127.0.0.1:2181"), o.str("flow-root", "/flows"));
            if (!o.str("unlike", "").isEmpty()) {
                r.dropThoseIn(Path.of(o.str("unlike", "")));
            }
            long bytes = 0;
            for (Map.Entry<String, byte[]> e : r.recorded.entrySet()) {
                require(e.getValue().length < 65536, e.getKey() + " is larger than 64 KiB");
                bytes += e.getValue().length;
            }
            if (o.flag("check")) {
                int bad = r.check(out);
                System.out.println("record --check: " + r.recorded.size() + " files, " + bytes + " bytes, " + bad + " differ");
                System.exit(bad == 0 ? 0 : 1);
            }
            Files.createDirectories(out);
            for (Map.Entry<String, byte[]> e : r.recorded.entrySet()) {
                Files.write(out.resolve(e.getKey()), e.getValue());
            }
            System.out.println("recorded " + r.recorded.size() + " files, " + bytes + " bytes in " + out);
        }
    }
}
