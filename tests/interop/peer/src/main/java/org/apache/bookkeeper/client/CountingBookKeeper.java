package org.apache.bookkeeper.client;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.stats.Counter;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.stats.StatsLogger;

/**
 * The client, counting what it sends: reads to each bookie, also those that find no connection, and speculative ones. In
 * this package because what it looks at is visible in here only.
 */
public final class CountingBookKeeper extends BookKeeper {
    /** Reads asked of each bookie so far. */
    public final Map<BookieId, LongAdder> sent = new ConcurrentHashMap<>();
    private final Stats stats;
    private BookieClient counting;

    private static final class Stats extends NullStatsLogger {
        private final LongAdder speculative = new LongAdder();

        @Override
        public StatsLogger scope(String name) {
            return this;
        }

        @Override
        public Counter getCounter(String name) {
            if (!name.equals(BookKeeperClientStats.SPECULATIVE_READ_COUNT)) {
                return super.getCounter(name);
            }
            Counter ignored = super.getCounter(name);
            return (Counter) Proxy.newProxyInstance(Counter.class.getClassLoader(), new Class<?>[] {Counter.class}, (p, m, a) -> {
                if (m.getName().equals("inc")) {
                    speculative.increment();
                } else if (m.getName().equals("addCount")) {
                    speculative.add((Long) a[0]);
                }
                return m.invoke(ignored, a);
            });
        }
    }

    private CountingBookKeeper(ClientConfiguration conf, Stats stats) throws IOException, InterruptedException, BKException {
        super(conf, null, null, null, stats, null, null, null);
        this.stats = stats;
        BookieClient real = super.getBookieClient();
        counting = (BookieClient) Proxy.newProxyInstance(BookieClient.class.getClassLoader(), new Class<?>[] {BookieClient.class},
                (p, m, a) -> {
                    if (m.getName().equals("readEntry") || m.getName().equals("batchReadEntries")) {
                        sent.computeIfAbsent((BookieId) a[0], id -> new LongAdder()).increment();
                    }
                    try {
                        return m.invoke(real, a);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                });
    }

    public static CountingBookKeeper connect(ClientConfiguration conf) throws IOException, InterruptedException, BKException {
        return new CountingBookKeeper(conf, new Stats());
    }

    /** Reads sent to one more bookie so far, because the others took long. */
    public long speculative() {
        return stats.speculative.sum();
    }

    @Override
    BookieClient getBookieClient() {
        return counting == null ? super.getBookieClient() : counting;
    }
}
