package oxia;

import io.oxia.client.api.AsyncOxiaClient;
import io.oxia.client.api.CloseableIterable;
import io.oxia.client.api.GetResult;
import io.oxia.client.api.Notification;
import io.oxia.client.api.OxiaClientBuilder;
import io.oxia.client.api.PutResult;
import io.oxia.client.api.SyncOxiaClient;
import io.oxia.client.api.exceptions.KeyAlreadyExistsException;
import io.oxia.client.api.exceptions.UnexpectedVersionIdException;
import io.oxia.client.api.options.DeleteOption;
import io.oxia.client.api.options.GetOption;
import io.oxia.client.api.options.GetSequenceUpdatesOption;
import io.oxia.client.api.options.PutOption;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;

/** Client SERVER RESTART_COMMAND: Oxia's own client on a server; every answer is compared with what a server of Oxia's gives. */
public final class Client {
    private static int checks;

    public static void main(String[] args) throws Exception {
        String server = args[0], restart = args[1];
        try (SyncOxiaClient client = OxiaClientBuilder.create(server).clientIdentifier("java").syncClient()) {
            versions(client);
            ranges(client);
            neighbours(client);
            sequences(client);
            notifications(server, client);
            sessions(server, client);
        }
        kills(server, restart);
        namespaces(server);
        System.out.println("java: " + checks + " checks passed");
        System.exit(0);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            System.out.println("java: FAILED: " + what);
            System.exit(1);
        }
        checks++;
    }

    private static void same(Object found, Object expected, String what) {
        check(found.equals(expected), what + ": found " + found + ", expected " + expected);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(GetResult found) {
        return new String(found.value(), StandardCharsets.UTF_8);
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void waitFor(String what, Condition condition) throws Exception {
        long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!condition.holds()) {
            check(System.nanoTime() < limit, "not within a minute: " + what);
            Thread.sleep(20);
        }
        checks++;
    }

    private static void versions(SyncOxiaClient client) throws Exception {
        PutResult first = client.put("/v/a", bytes("1"), Set.of(PutOption.IfRecordDoesNotExist));
        same(first.version().modificationsCount(), 0L, "changes of a new record");
        same(first.version().sessionId(), Optional.empty(), "session of a record that stays");
        try {
            client.put("/v/a", bytes("2"), Set.of(PutOption.IfRecordDoesNotExist));
            check(false, "a record was made twice");
        } catch (KeyAlreadyExistsException expected) {
            checks++;
        }
        long version = first.version().versionId();
        PutResult second = client.put("/v/a", bytes("2"), Set.of(PutOption.IfVersionIdEquals(version)));
        check(second.version().versionId() > version, "versions grow");
        same(second.version().modificationsCount(), 1L, "changes");
        same(second.version().createdTimestamp(), first.version().createdTimestamp(), "time of the creation");
        try {
            client.put("/v/a", bytes("3"), Set.of(PutOption.IfVersionIdEquals(version)));
            check(false, "an old version was accepted");
        } catch (UnexpectedVersionIdException expected) {
            checks++;
        }
        try {
            client.put("/v/none", bytes("3"), Set.of(PutOption.IfVersionIdEquals(version)));
            check(false, "a record was made where one was expected");
        } catch (UnexpectedVersionIdException expected) {
            checks++;
        }
        GetResult found = client.get("/v/a");
        same(text(found), "2", "value");
        same(found.version(), second.version(), "version that is read");
        same(client.get("/v/a", Set.of(GetOption.ExcludeValue)).value().length, 0, "a value that was not asked for");
        check(client.get("/v/none") == null, "a record that is not there");
        try {
            client.delete("/v/a", Set.of(DeleteOption.IfVersionIdEquals(version)));
            check(false, "an old version was deleted");
        } catch (UnexpectedVersionIdException expected) {
            checks++;
        }
        check(client.delete("/v/a", Set.of(DeleteOption.IfVersionIdEquals(second.version().versionId()))), "deleted");
        check(!client.delete("/v/a"), "deleted twice");
        for (String key : List.of("no path", "/", "//", "/v/", "/v//b", "/zookeeper/x", "ü/\uD83D\uDE00", "/v/deep/er/est")) {
            client.put(key, bytes(key));
            same(text(client.get(key)), key, "a key that is any string");
        }
        same(client.put("/v/empty", new byte[0]).version().modificationsCount(), 0L, "an empty value");
        same(client.get("/v/empty").value().length, 0, "an empty value");
        byte[] large = new byte[3 << 20];
        client.put("/v/large", large);
        same(client.get("/v/large").value().length, large.length, "a large value");
        client.delete("/v/large");
    }

    private static void ranges(SyncOxiaClient client) throws Exception {
        String filling = "x".repeat(1000);
        int count = 3000;
        IntStream.range(0, count).parallel().forEach(number ->
            client.put(String.format("/r/%05d", number), bytes(number + filling)));
        client.put("/r/00000/child", bytes(""));
        client.put("/rr", bytes(""));
        List<String> keys = IntStream.range(0, count).mapToObj(number -> String.format("/r/%05d", number)).toList();
        same(client.list("/r/", "/r//"), keys, "children of a path, in order");
        List<String> scanned = new ArrayList<>();
        try (CloseableIterable<GetResult> records = client.rangeScan("/r/", "/r//")) {
            for (GetResult record : records) {
                check(text(record).equals(scanned.size() + filling), "the value of " + record.key());
                scanned.add(record.key());
            }
        }
        same(scanned, keys, "a scan, in order");
        client.deleteRange("/r/00010", "/r/00020");
        same(client.list("/r/", "/r//").size(), count - 10, "a range that was deleted");
        client.deleteRange("/r/", "/r//");
        same(client.list("/r/", "/r//"), List.of(), "all children deleted");
        check(client.get("/r/00000/child") != null, "what lies below them stays");
    }

    private static void neighbours(SyncOxiaClient client) throws Exception {
        for (String key : List.of("/n/b", "/n/d", "/n/f")) {
            client.put(key, bytes(key));
        }
        same(client.get("/n/c", Set.of(GetOption.ComparisonFloor)).key(), "/n/b", "floor");
        same(client.get("/n/d", Set.of(GetOption.ComparisonFloor)).key(), "/n/d", "floor");
        same(client.get("/n/c", Set.of(GetOption.ComparisonCeiling)).key(), "/n/d", "ceiling");
        same(client.get("/n/d", Set.of(GetOption.ComparisonLower)).key(), "/n/b", "lower");
        same(client.get("/n/d", Set.of(GetOption.ComparisonHigher)).key(), "/n/f", "higher");
    }

    private static void sequences(SyncOxiaClient client) throws Exception {
        ConcurrentLinkedQueue<String> told = new ConcurrentLinkedQueue<>();
        var updates = client.getSequenceUpdates("/s/q", told::add, Set.of(GetSequenceUpdatesOption.PartitionKey("/s")));
        String last = "";
        for (int number = 1; number <= 20; number++) {
            PutResult put = client.put("/s/q", bytes("" + number), Set.of(PutOption.PartitionKey("/s"), PutOption.SequenceKeysDeltas(List.of(2L))));
            last = put.key();
            same(last, String.format("/s/q-%020d", 2 * number), "the next key of a sequence");
        }
        String highest = last;
        waitFor("the highest key of a sequence", () -> told.contains(highest));
        updates.close();
    }

    private static void notifications(String server, SyncOxiaClient client) throws Exception {
        try (SyncOxiaClient other = OxiaClientBuilder.create(server).clientIdentifier("listener").syncClient()) {
            ConcurrentLinkedQueue<Notification> told = new ConcurrentLinkedQueue<>();
            other.notifications(told::add);
            // The subscription has no answer of its own: it is there when it tells of something.
            waitFor("a subscription", () -> {
                client.put("/t/ready", bytes(""));
                return !told.isEmpty();
            });
            long created = client.put("/t/a", bytes("1")).version().versionId();
            long modified = client.put("/t/a", bytes("2")).version().versionId();
            client.delete("/t/a");
            client.deleteRange("/t/", "/t//");
            List<Notification> expected = List.of(new Notification.KeyCreated("/t/a", created), new Notification.KeyModified("/t/a", modified),
                new Notification.KeyDeleted("/t/a"), new Notification.KeyRangeDelete("/t/", "/t//"));
            waitFor("notifications", () -> told.contains(expected.get(3)));
            same(told.stream().filter(notification -> !notification.key().equals("/t/ready")).toList(), expected, "notifications, in order");
        }
    }

    private static void sessions(String server, SyncOxiaClient client) throws Exception {
        SyncOxiaClient owner = OxiaClientBuilder.create(server).clientIdentifier("owner").sessionTimeout(Duration.ofSeconds(5)).syncClient();
        PutResult put = owner.put("/e/a", bytes("1"), Set.of(PutOption.AsEphemeralRecord));
        same(put.version().clientIdentifier(), Optional.of("owner"), "who made an ephemeral record");
        check(put.version().sessionId().isPresent(), "an ephemeral record has a session");
        owner.put("/e/b", bytes("1"), Set.of(PutOption.AsEphemeralRecord));
        client.put("/e/b", bytes("2"));
        Thread.sleep(8000);
        same(client.list("/e/", "/e//"), List.of("/e/a", "/e/b"), "a session lives longer than its timeout");
        owner.close();
        same(client.list("/e/", "/e//"), List.of("/e/b"), "ephemeral records go with their session, and others stay");
    }

    /** Writes without a pause while the server is killed and started again. */
    private static void kills(String server, String restart) throws Exception {
        AsyncOxiaClient client = OxiaClientBuilder.create(server).clientIdentifier("writer").asyncClient().get();
        Set<String> told = ConcurrentHashMap.newKeySet();
        client.notifications(notification -> told.add(notification.key()));
        waitFor("a subscription", () -> {
            client.put("/k/ready", bytes("")).get();
            return told.contains("/k/ready");
        });
        PutResult ephemeral = client.put("/k/e", bytes("1"), Set.of(PutOption.AsEphemeralRecord)).get();
        Map<String, Long> acknowledged = new ConcurrentHashMap<>();
        AtomicBoolean isOver = new AtomicBoolean();
        List<Thread> writers = new ArrayList<>();
        for (int writer = 0; writer < 4; writer++) {
            String prefix = "/k/" + writer + "-";
            Thread thread = new Thread(() -> {
                for (int number = 0; !isOver.get(); number++) {
                    String key = prefix + number;
                    try {
                        PutResult put = client.put(key, bytes(key)).get(90, TimeUnit.SECONDS);
                        acknowledged.put(key, put.version().versionId());
                    } catch (Exception unknown) {
                        // Neither written nor lost for certain.
                    }
                }
            });
            thread.start();
            writers.add(thread);
        }
        int before = 0;
        for (int kill = 0; kill < 3; kill++) {
            int target = before + 50;
            waitFor("writes go on", () -> acknowledged.size() >= target);
            check(new ProcessBuilder("bash", "-c", restart).inheritIO().start().waitFor() == 0, "the server is started again");
            before = acknowledged.size();
        }
        int target = before + 50;
        waitFor("writes go on", () -> acknowledged.size() >= target);
        isOver.set(true);
        for (Thread thread : writers) {
            thread.join();
        }
        for (Map.Entry<String, Long> entry : acknowledged.entrySet()) {
            GetResult found = client.get(entry.getKey()).get();
            check(found != null && text(found).equals(entry.getKey()), "acknowledged and lost: " + entry.getKey());
        }
        check(Set.copyOf(acknowledged.values()).size() == acknowledged.size(), "no version came twice");
        GetResult kept = client.get("/k/e").get();
        check(kept != null && kept.version().sessionId().equals(ephemeral.version().sessionId()), "a session outlives the server");
        waitFor("a notification of each acknowledged write", () -> told.containsAll(acknowledged.keySet()));
        client.close();
        System.out.println("java: " + acknowledged.size() + " writes were acknowledged around 3 kills");
    }

    private static void namespaces(String server) {
        try {
            OxiaClientBuilder.create(server).namespace("other").syncClient().close();
            check(false, "a namespace that is not there");
        } catch (Exception expected) {
            String words = String.valueOf(expected) + expected.getCause();
            check(words.toLowerCase().contains("namespace"), "the refusal of a namespace says so: " + words);
        }
    }
}
