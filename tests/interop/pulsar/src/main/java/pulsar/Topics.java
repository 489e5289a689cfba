package pulsar;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;

/**
 * A client of Pulsar that takes an order a line from standard input, and answers each with one line: "ok ..." or "failed ...". Each message
 * says which of its topic it is, and its bytes follow from that, so that what is read is compared to the byte.
 *
 * <pre>
 * Topics --service pulsar://HOST:PORT --admin http://HOST:PORT
 *
 * produce TOPIC FIRST COUNT BYTES single|batched   sends messages, and waits until each is acknowledged
 * begin TOPIC BYTES                                sends to a topic from message 0 on, until it is told to end
 * end TOPIC                                        ok COUNT: how many were sent and acknowledged
 * read TOPIC COUNT BYTES                           ok COUNT DUPLICATES: reads from the beginning, in order, until it has seen message COUNT - 1
 * send TOPIC COUNT TEXT                            sends the text so many times, each acknowledged
 * receive TOPIC SUBSCRIPTION COUNT                 ok TEXT: takes so many messages of one text from the beginning, and acknowledges them
 * stall TOPIC                                      subscribes, and takes nothing from then on
 * unload TOPIC                                     the broker closes the topic, and opens it for its next user
 * ledgers TOPIC                                    ok ID...: the ledgers of the topic
 * </pre>
 */
public final class Topics {
  /** Messages that are sent and not acknowledged. */
  private static final int UNDER_WAY = 200;

  /** More than any outage that a test makes. */
  private static final int TIMEOUT_S = 120;

  private final PulsarClient client;
  private final PulsarAdmin admin;
  private final Map<String, Load> loads = new HashMap<>();
  private final List<Consumer<byte[]>> stalled = new ArrayList<>();

  private Topics(String service, String web) throws Exception {
    client = PulsarClient.builder().serviceUrl(service).operationTimeout(TIMEOUT_S, TimeUnit.SECONDS).build();
    admin = PulsarAdmin.builder().serviceHttpUrl(web).build();
  }

  public static void main(String[] args) throws Exception {
    if (args.length != 4 || !args[0].equals("--service") || !args[2].equals("--admin")) {
      System.err.println("Topics --service pulsar://HOST:PORT --admin http://HOST:PORT");
      System.exit(2);
    }
    Topics topics = new Topics(args[1], args[3]);
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      String answer;
      try {
        answer = "ok " + topics.obey(order.trim().split(" +"));
      } catch (Exception e) {
        answer = "failed " + String.valueOf(e).replace('\n', ' ');
      }
      System.out.println(answer.trim());
    }
    // What is under way is not waited for: a broker may be gone.
    System.exit(0);
  }

  private String obey(String[] order) throws Exception {
    switch (order[0]) {
      case "produce":
        return produce(order[1], Long.parseLong(order[2]), Long.parseLong(order[3]), Integer.parseInt(order[4]), order[5].equals("batched"));
      case "begin":
        loads.put(order[1], new Load(order[1], Integer.parseInt(order[2])));
        return "";
      case "end":
        return String.valueOf(loads.remove(order[1]).end());
      case "read":
        return read(order[1], Long.parseLong(order[2]), Integer.parseInt(order[3]));
      case "send":
        return send(order[1], Integer.parseInt(order[2]), text(order, 3));
      case "receive":
        return receive(order[1], order[2], Integer.parseInt(order[3]));
      case "stall":
        stalled.add(client.newConsumer().topic(order[1]).subscriptionName("stalled").subscriptionType(SubscriptionType.Exclusive)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).receiverQueueSize(10).subscribe());
        return "";
      case "unload":
        admin.topics().unload(order[1]);
        return "";
      case "ledgers":
        StringBuilder ids = new StringBuilder();
        PersistentTopicInternalStats stats = admin.topics().getInternalStats(order[1]);
        stats.ledgers.forEach(ledger -> ids.append(ledger.ledgerId).append(' '));
        return ids.toString();
      default:
        throw new IllegalArgumentException("no order " + order[0]);
    }
  }

  /** Message {@code index} of a topic; shorter messages than a number do not occur. */
  private static byte[] content(String topic, long index, int bytes) {
    ByteBuffer content = ByteBuffer.allocate(Math.max(bytes, Long.BYTES));
    content.putLong(index);
    byte[] filler = new byte[content.remaining()];
    new SplittableRandom(topic.hashCode() * 31L + index).nextBytes(filler);
    content.put(filler);
    return content.array();
  }

  private Producer<byte[]> producer(String topic, boolean batched) throws Exception {
    return client.newProducer().topic(topic).enableBatching(batched).blockIfQueueFull(true).maxPendingMessages(UNDER_WAY)
        .sendTimeout(TIMEOUT_S, TimeUnit.SECONDS).create();
  }

  private String produce(String topic, long first, long count, int bytes, boolean batched) throws Exception {
    try (Producer<byte[]> producer = producer(topic, batched)) {
      AtomicReference<Throwable> failure = new AtomicReference<>();
      List<CompletableFuture<MessageId>> sent = new ArrayList<>();
      for (long index = first; index < first + count; index++) {
        sent.add(producer.sendAsync(content(topic, index, bytes)));
      }
      for (CompletableFuture<MessageId> one : sent) {
        one.whenComplete((id, e) -> failure.compareAndSet(null, e));
        one.handle((id, e) -> id).get(TIMEOUT_S, TimeUnit.SECONDS);
      }
      if (failure.get() != null) {
        throw new IllegalStateException("a message was not acknowledged", failure.get());
      }
      return String.valueOf(count);
    }
  }

  private static String text(String[] order, int first) {
    return String.join(" ", Arrays.copyOfRange(order, first, order.length));
  }

  private String send(String topic, int count, String text) throws Exception {
    try (Producer<byte[]> producer = producer(topic, false)) {
      for (int i = 0; i < count; i++) {
        producer.send(text.getBytes(StandardCharsets.UTF_8));
      }
    }
    return "";
  }

  private String receive(String topic, String subscription, int count) throws Exception {
    String text = null;
    try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(subscription)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
      for (int i = 0; i < count; i++) {
        Message<byte[]> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
        if (message == null) {
          throw new IllegalStateException("message " + i + " of " + topic + " does not come");
        }
        String one = new String(message.getData(), StandardCharsets.UTF_8);
        if (text != null && !text.equals(one)) {
          throw new IllegalStateException("message " + i + " of " + topic + " is " + one + " and not " + text);
        }
        text = one;
        consumer.acknowledge(message);
      }
    }
    return text;
  }

  private String read(String topic, long count, int bytes) throws Exception {
    long next = 0;
    long duplicates = 0;
    try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
      while (next < count) {
        Message<byte[]> message = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS);
        if (message == null) {
          throw new IllegalStateException("message " + next + " of " + topic + " does not come");
        }
        byte[] data = message.getData();
        long index = ByteBuffer.wrap(data).getLong();
        if (index > next) {
          throw new IllegalStateException("message " + next + " of " + topic + " is missing: " + index + " came, " + message.getMessageId());
        }
        if (!Arrays.equals(data, content(topic, index, bytes))) {
          throw new IllegalStateException("message " + index + " of " + topic + " has other bytes, " + message.getMessageId());
        }
        if (index < next) {
          duplicates++;
        } else {
          next++;
        }
      }
    }
    return count + " " + duplicates;
  }

  /** Sends to one topic without a pause, on a thread of its own. */
  private final class Load {
    private final Thread thread;
    private volatile boolean isOver;
    private volatile Throwable failure;
    private long count;

    Load(String topic, int bytes) throws Exception {
      Producer<byte[]> producer = producer(topic, true);
      Semaphore room = new Semaphore(UNDER_WAY);
      thread = new Thread(() -> {
        try (producer) {
          while (!isOver && failure == null) {
            room.acquire();
            producer.sendAsync(content(topic, count, bytes)).whenComplete((id, e) -> {
              if (e != null) {
                failure = e;
              }
              room.release();
            });
            count++;
            Thread.sleep(1);
          }
          if (!room.tryAcquire(UNDER_WAY, TIMEOUT_S, TimeUnit.SECONDS) && failure == null) {
            failure = new IllegalStateException("messages are not acknowledged");
          }
        } catch (Exception e) {
          failure = e;
        }
      }, "load of " + topic);
      thread.setDaemon(true);
      thread.start();
    }

    long end() throws Exception {
      isOver = true;
      thread.join(2 * TIMEOUT_S * 1000L);
      if (thread.isAlive()) {
        throw new IllegalStateException("the load does not end");
      }
      if (failure != null) {
        throw new IllegalStateException("a message was not acknowledged", failure);
      }
      return count;
    }
  }
}
