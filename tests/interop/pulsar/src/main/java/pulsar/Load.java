package pulsar;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * A load that takes an order a line from standard input, and answers each with one line: "ok ..." or "failed ...". Topics are PREFIX-0, PREFIX-1 and
 * so on, each with a producer or reader and a thread of its own.
 *
 * <pre>
 * Load --service pulsar://HOST:PORT --admin http://HOST:PORT --topics N
 *
 * produce PREFIX BYTES single|batched UNDER_WAY WARMUP SECONDS   ok PER_SECOND P50_MS P99_MS MAX_MS ALL: as fast as they are acknowledged, UNDER_WAY at
 *                                                                most of each topic; ALL counts those of the warm-up, too
 * read PREFIX                                                    ok PER_SECOND ALL: unloads the topics, and reads all of them from the beginning
 * </pre>
 */
public final class Load {
  /** Latencies are counted to a tenth of a millisecond. */
  private static final int BUCKET_US = 100;
  private static final int TIMEOUT_S = 60;

  private final PulsarClient client;
  private final PulsarAdmin admin;
  private final int topics;
  private final ExecutorService threads;
  /** Of the load that was produced last. */
  private final long[] sent;

  private Load(String service, String web, int topics) throws Exception {
    client = PulsarClient.builder().serviceUrl(service).operationTimeout(TIMEOUT_S, TimeUnit.SECONDS).build();
    admin = PulsarAdmin.builder().serviceHttpUrl(web).build();
    this.topics = topics;
    threads = Executors.newFixedThreadPool(topics);
    sent = new long[topics];
  }

  public static void main(String[] args) throws Exception {
    if (args.length != 6 || !args[0].equals("--service") || !args[2].equals("--admin") || !args[4].equals("--topics")) {
      System.err.println("Load --service pulsar://HOST:PORT --admin http://HOST:PORT --topics N");
      System.exit(2);
    }
    Load load = new Load(args[1], args[3], Integer.parseInt(args[5]));
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      String answer;
      try {
        answer = "ok " + load.obey(order.trim().split(" +"));
      } catch (Exception e) {
        answer = "failed " + String.valueOf(e).replace('\n', ' ');
      }
      System.out.println(answer);
    }
    System.exit(0);
  }

  private String obey(String[] order) throws Exception {
    switch (order[0]) {
      case "produce":
        return produce(order[1], Integer.parseInt(order[2]), order[3].equals("batched"), Integer.parseInt(order[4]), Integer.parseInt(order[5]),
            Integer.parseInt(order[6]));
      case "read":
        return read(order[1]);
      default:
        throw new IllegalArgumentException("no order " + order[0]);
    }
  }

  private interface OfTopic {
    void run(int topic) throws Exception;
  }

  /** Runs something for each topic at once, and waits for all. */
  private void onAll(OfTopic task) throws Exception {
    List<Future<Void>> tasks = new ArrayList<>();
    for (int i = 0; i < topics; i++) {
      int topic = i;
      tasks.add(threads.submit((Callable<Void>) () -> {
        task.run(topic);
        return null;
      }));
    }
    for (Future<Void> one : tasks) {
      one.get();
    }
  }

  private static String name(String prefix, int topic) {
    return "persistent://public/default/" + prefix + "-" + topic;
  }

  private String produce(String prefix, int bytes, boolean batched, int underWay, int warmup, int seconds) throws Exception {
    byte[] content = new byte[bytes];
    new SplittableRandom(1).nextBytes(content);
    AtomicLongArray latencies = new AtomicLongArray(TIMEOUT_S * 1_000_000 / BUCKET_US + 1);
    AtomicLong counted = new AtomicLong();
    AtomicReference<Throwable> failure = new AtomicReference<>();
    long begin = System.nanoTime() + TimeUnit.SECONDS.toNanos(warmup);
    long end = begin + TimeUnit.SECONDS.toNanos(seconds);
    onAll(topic -> {
      Semaphore room = new Semaphore(underWay);
      long count = 0;
      try (Producer<byte[]> producer = client.newProducer().topic(name(prefix, topic)).enableBatching(batched).blockIfQueueFull(true)
          .maxPendingMessages(underWay).sendTimeout(TIMEOUT_S, TimeUnit.SECONDS).create()) {
        while (System.nanoTime() < end && failure.get() == null) {
          room.acquire();
          long at = System.nanoTime();
          producer.sendAsync(content).whenComplete((id, e) -> {
            long now = System.nanoTime();
            if (e != null) {
              failure.compareAndSet(null, e);
            } else if (now >= begin && now < end) {
              counted.incrementAndGet();
              latencies.incrementAndGet((int) Math.min((now - at) / 1000 / BUCKET_US, latencies.length() - 1));
            }
            room.release();
          });
          count++;
        }
        if (!room.tryAcquire(underWay, TIMEOUT_S, TimeUnit.SECONDS)) {
          throw new IllegalStateException("messages are not acknowledged");
        }
      }
      sent[topic] = count;
    });
    if (failure.get() != null) {
      throw new IllegalStateException("a message was not acknowledged", failure.get());
    }
    long all = 0;
    for (long count : sent) {
      all += count;
    }
    return String.format(Locale.ROOT, "%.1f %.1f %.1f %.1f %d", counted.get() / (double) seconds, quantile(latencies, counted.get(), 0.5),
        quantile(latencies, counted.get(), 0.99), quantile(latencies, counted.get(), 1), all);
  }

  /** In milliseconds. */
  private static double quantile(AtomicLongArray latencies, long count, double share) {
    long wanted = (long) Math.ceil(count * share);
    long seen = 0;
    for (int bucket = 0; bucket < latencies.length(); bucket++) {
      seen += latencies.get(bucket);
      if (seen >= wanted) {
        return (bucket + 1) * BUCKET_US / 1000.0;
      }
    }
    throw new IllegalStateException("latencies are missing");
  }

  private String read(String prefix) throws Exception {
    for (int topic = 0; topic < topics; topic++) {
      admin.topics().unload(name(prefix, topic));
    }
    long begin = System.nanoTime();
    AtomicLong all = new AtomicLong();
    onAll(topic -> {
      try (Reader<byte[]> reader = client.newReader().topic(name(prefix, topic)).startMessageId(MessageId.earliest).receiverQueueSize(1000).create()) {
        for (long index = 0; index < sent[topic]; index++) {
          if (reader.readNext(TIMEOUT_S, TimeUnit.SECONDS) == null) {
            throw new IllegalStateException("message " + index + " of topic " + topic + " does not come");
          }
        }
        all.addAndGet(sent[topic]);
      }
    });
    return String.format(Locale.ROOT, "%.1f %d", all.get() / ((System.nanoTime() - begin) / 1e9), all.get());
  }
}
