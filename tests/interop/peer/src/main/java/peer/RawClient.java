package peer;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.channel.nio.NioEventLoopGroup;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieClientImpl;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.WriteCallback;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.apache.bookkeeper.util.ByteBufList;

/**
 * The Java client's connection layer without metadata and quorums: single requests to one bookie, each awaited, with any
 * flags. What goes over the wire is produced by the Java client; every call returns its result code.
 */
final class RawClient implements AutoCloseable {
    /** What one request gave: the client library's code (0 = OK), the entry id echoed, and the entries as stored. */
    record Reply(int code, long entryId, List<byte[]> entries) {
        byte[] entry() {
            return entries.get(0);
        }
    }

    private final NioEventLoopGroup loop = new NioEventLoopGroup(1);
    private final OrderedExecutor executor = OrderedExecutor.newBuilder().name("raw").numThreads(1).build();
    private final ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
    private final BookieClientImpl client;
    private final BookieId bookie;
    private final boolean v2;

    RawClient(ClientConfiguration conf, String host, int port) throws Exception {
        v2 = conf.getUseV2WireProtocol();
        bookie = BookieId.parse(host + ":" + port);
        client = new BookieClientImpl(conf, loop, ByteBufAllocator.DEFAULT, executor, scheduler, NullStatsLogger.INSTANCE,
                BookieSocketAddress.LEGACY_BOOKIEID_RESOLVER);
    }

    static ClientConfiguration conf(boolean v2) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setUseV2WireProtocol(v2);
        return conf;
    }

    BookieId bookie() {
        return bookie;
    }

    private static <T> T await(CompletableFuture<T> f) throws Exception {
        try {
            return f.get(20, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            throw new IllegalStateException("no answer and no client time-out in 20 s", e);
        } catch (ExecutionException e) {
            throw e.getCause() instanceof Exception x ? x : e;
        }
    }

    /** Digest and key of a ledger; the enum of digest types moved between 4.17 and 4.18, hence reflection. */
    static DigestManager digest(long ledger, String password, String type, boolean v2) throws Exception {
        for (Method m : DigestManager.class.getMethods()) {
            if (m.getName().equals("instantiate")) {
                try {
                    @SuppressWarnings({"unchecked", "rawtypes"})
                    Object t = Enum.valueOf((Class<? extends Enum>) m.getParameterTypes()[2], type.equals("MAC") ? "HMAC" : type);
                    return (DigestManager) m.invoke(null, ledger, password.getBytes(), t, ByteBufAllocator.DEFAULT, v2);
                } catch (InvocationTargetException e) {
                    throw new IllegalStateException(e.getCause());
                }
            }
        }
        throw new IllegalStateException("no DigestManager.instantiate");
    }

    static byte[] key(String password) throws Exception {
        return DigestManager.generateMasterKey(password.getBytes());
    }

    private static byte[] bytes(ByteBuf b) {
        if (b == null) {
            return new byte[0];
        }
        byte[] out = new byte[b.readableBytes()];
        b.getBytes(b.readerIndex(), out);
        return out;
    }

    private static Method named(Class<?> of, String name) {
        return Arrays.stream(of.getMethods()).filter(m -> m.getName().equals(name)).findFirst().orElseThrow();
    }

    /** Before 4.16 an entry is packed without key and flags, and adds take it as another type, hence reflection. */
    private static Object packaged(DigestManager digest, long entry, long lac, long length, ByteBuf payload, byte[] key, int flags)
            throws Exception {
        Method m = named(DigestManager.class, "computeDigestAndPackageForSending");
        return m.getParameterCount() == 4 ? m.invoke(digest, entry, lac, length, payload)
                : m.invoke(digest, entry, lac, length, payload, key, flags);
    }

    /** Adds one entry whose digest is right for {@code password}, presenting the master key of {@code keyOf}. */
    Reply add(long ledger, long entry, long lac, long length, byte[] payload, String password, String keyOf, String digest,
              int flags, EnumSet<WriteFlag> writeFlags) throws Exception {
        byte[] key = key(keyOf);
        Object packet = packaged(digest(ledger, password, digest, v2), entry, lac, length, Unpooled.wrappedBuffer(payload), key, flags);
        CompletableFuture<Reply> f = new CompletableFuture<>();
        WriteCallback done = (rc, l, e, addr, ctx) -> f.complete(new Reply(rc, e, List.of()));
        named(BookieClientImpl.class, "addEntry").invoke(client, bookie, ledger, key, entry, packet, done, null, flags, false, writeFlags);
        return await(f);
    }

    /** Reads one entry (-1: the last); {@code keyOf} null = no master key. */
    Reply read(long ledger, long entry, int flags, String keyOf) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.readEntry(bookie, ledger, entry,
                (rc, l, e, buf, ctx) -> f.complete(new Reply(rc, e, buf == null ? List.of() : List.of(bytes(buf)))),
                null, flags, keyOf == null ? null : key(keyOf));
        return await(f);
    }

    Reply batchRead(long ledger, long first, int maxCount, long maxSize, int flags, String keyOf) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.batchReadEntries(bookie, ledger, first, maxCount, maxSize, (rc, l, e, list, ctx) -> {
            List<byte[]> out = new ArrayList<>();
            for (int i = 0; list != null && i < list.size(); i++) {
                out.add(bytes(list.getBuffer(i)));
            }
            f.complete(new Reply(rc, e, out));
        }, null, flags, keyOf == null ? null : key(keyOf));
        return await(f);
    }

    Reply longPoll(long ledger, long previousLac, long timeOutMs, boolean piggyback) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.readEntryWaitForLACUpdate(bookie, ledger, -1, previousLac, timeOutMs, piggyback,
                (rc, l, e, buf, ctx) -> f.complete(new Reply(rc, e, buf == null ? List.of() : List.of(bytes(buf)))), null);
        return await(f);
    }

    Reply writeLac(long ledger, long lac, String password, String keyOf, String digest) throws Exception {
        ByteBufList packet = digest(ledger, password, digest, v2).computeDigestAndPackageForSendingLac(lac);
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.writeLac(bookie, ledger, key(keyOf), lac, packet,
                (rc, l, addr, ctx) -> f.complete(new Reply(rc, -1, List.of())), null);
        return await(f);
    }

    /** The explicit LAC body and the last entry, empty when the bookie sent none. */
    Reply readLac(long ledger) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.readLac(bookie, ledger, (rc, l, lac, last, ctx) -> {
            List<byte[]> out = new ArrayList<>();
            out.add(bytes(lac));
            out.add(bytes(last));
            f.complete(new Reply(rc, -1, out));
        }, null);
        return await(f);
    }

    Reply force(long ledger) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.forceLedger(bookie, ledger, (rc, l, addr, ctx) -> f.complete(new Reply(rc, -1, List.of())), null);
        return await(f);
    }

    /** Two 8-byte arrays: total and free bytes. */
    Reply bookieInfo(long requested) throws Exception {
        CompletableFuture<Reply> f = new CompletableFuture<>();
        client.getBookieInfo(bookie, requested, (rc, info, ctx) -> f.complete(new Reply(rc, -1,
                info == null ? List.of() : List.of(ByteBuffer.allocate(8).putLong(info.getTotalDiskSpace()).array(),
                        ByteBuffer.allocate(8).putLong(info.getFreeDiskSpace()).array()))), null);
        return await(f);
    }

    AvailabilityOfEntriesOfLedger listOfEntries(long ledger) throws Exception {
        return await(client.getListOfEntriesOfLedger(bookie, ledger));
    }

    @Override
    public void close() throws Exception {
        // a reply is given to us inside the library's callback: let it finish, closing beside it fails in 4.17
        loop.submit(() -> { }).get(5, TimeUnit.SECONDS);
        executor.submitOrdered(0L, () -> null).get(5, TimeUnit.SECONDS);
        client.close();
        loop.shutdownGracefully(0, 2, TimeUnit.SECONDS).await(5, TimeUnit.SECONDS);
        executor.shutdown();
        scheduler.shutdownNow();
    }
}
