package peer;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Transaction;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

/**
 * The public API of the unmodified ZooKeeper client against one server: every call that makes sense on a single server,
 * synchronous and asynchronous, sessions that are taken up, moved, expired and closed, and (with --restart-command) a
 * server that is restarted under a living session. The first difference ends the run with code 1. One JSON line.
 */
public final class ZkClient {
    private static final int TIMEOUT_MS = 10_000;
    private static final long PATIENCE_S = 60;

    private static final class Mismatch extends RuntimeException {
        private static final long serialVersionUID = 1;

        Mismatch(String message) {
            super(message);
        }
    }

    /** Events in the order in which they came. */
    private static final class Events implements Watcher {
        final BlockingQueue<WatchedEvent> queue = new LinkedBlockingQueue<>();

        @Override
        public void process(WatchedEvent event) {
            queue.add(event);
        }

        void expect(EventType type, String path) throws InterruptedException {
            WatchedEvent e = queue.poll(PATIENCE_S, TimeUnit.SECONDS);
            while (e != null && e.getType() == EventType.None) { // connection events go to every watcher
                e = queue.poll(PATIENCE_S, TimeUnit.SECONDS);
            }
            check(e != null && e.getType() == type && path.equals(e.getPath()), "the event " + e + " instead of " + type + " " + path);
        }

        void expectState(KeeperState state) throws InterruptedException {
            WatchedEvent e;
            do {
                e = queue.poll(PATIENCE_S, TimeUnit.SECONDS);
                check(e != null, "no event " + state);
            } while (e.getType() != EventType.None || e.getState() != state);
        }

        void expectNone() {
            queue.removeIf(e -> e.getType() == EventType.None);
            check(queue.isEmpty(), "unexpected events " + queue);
        }
    }

    /** A handle whose connection can be cut without closing the session. */
    private static final class Handle extends ZooKeeper {
        final Events events;

        private Handle(String server, int timeout, Events events) throws Exception {
            super(server, timeout, events);
            this.events = events;
        }

        private Handle(String server, int timeout, Events events, long id, byte[] password) throws Exception {
            super(server, timeout, events, id, password);
            this.events = events;
        }

        /** Ends this handle's threads and connection; the server keeps the session until it expires. */
        void abandon() {
            cnxn.disconnect();
        }
    }

    private final String server;
    private final String restart;
    private final String base;
    private final List<String> done = new ArrayList<>();
    private static int checks;
    private volatile String step = "connect";
    private Handle zk;
    private Handle other;

    private ZkClient(Opts o) {
        server = o.str("zk", "127.0.0.1:2181");
        restart = o.str("restart-command", null);
        base = o.str("base", "/zk-client-" + System.nanoTime());
    }

    private static void check(boolean ok, String what) {
        checks++;
        if (!ok) {
            throw new Mismatch(what);
        }
    }

    private static void same(String what, Object want, Object got) {
        check(want.equals(got), what + " is " + got + " instead of " + want);
    }

    private interface Body {
        void run() throws Exception;
    }

    private void step(String name, Body body) throws Exception {
        step = name;
        body.run();
        done.add(name);
    }

    private static void fails(String what, Code want, Body body) throws Exception {
        try {
            body.run();
        } catch (KeeperException e) {
            same("the error of " + what, want, e.code());
            return;
        }
        throw new Mismatch(what + " succeeded instead of failing with " + want);
    }

    private static <T> T get(CompletableFuture<T> f) throws Exception {
        try {
            return f.get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            throw new Mismatch("an asynchronous call was not answered in " + PATIENCE_S + " s");
        }
    }

    private static byte[] bytes(String s) {
        return s.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] b) {
        return b == null ? "null" : new String(b, StandardCharsets.UTF_8);
    }

    private Handle connect(int timeout) throws Exception {
        Handle h = new Handle(server, timeout, new Events());
        h.events.expectState(KeeperState.SyncConnected);
        return h;
    }

    private String at(String name) {
        return base + "/" + name;
    }

    private void run() throws Exception {
        zk = connect(TIMEOUT_MS);
        other = connect(TIMEOUT_MS);
        step("session", () -> {
            check(zk.getSessionId() != 0 && zk.getSessionId() != other.getSessionId(), "session ids");
            same("the password's length", 16, zk.getSessionPasswd().length);
            same("the timeout", TIMEOUT_MS, zk.getSessionTimeout());
            same("the state", ZooKeeper.States.CONNECTED, zk.getState());
            zk.create(base, bytes("base"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        });
        step("create", this::create);
        step("create-async", this::createAsync);
        step("read", this::read);
        step("read-async", this::readAsync);
        step("set-delete", this::setDelete);
        step("errors", this::errors);
        step("watches", this::watches);
        step("persistent-watches", this::persistentWatches);
        step("remove-watches", this::removeWatches);
        step("multi", this::multi);
        step("transaction", this::transaction);
        step("multi-read", this::multiRead);
        step("ephemerals", this::ephemerals);
        step("acl", this::acl);
        step("sync", this::sync);
        step("config", () -> {
            Stat stat = new Stat();
            zk.getConfig(false, stat);
            zk.getConfig((Watcher) null, stat);
            same("/zookeeper", new TreeSet<>(List.of("config", "quota")), new TreeSet<>(zk.getChildren("/zookeeper", false)));
        });
        step("many", this::many);
        step("reconnect", this::reconnect);
        step("take-up", this::takeUp);
        step("expiry", this::expiry);
        if (restart != null) {
            step("restart", this::restart);
        }
        step("close", this::close);
    }

    private void create() throws Exception {
        same("path", at("c"), zk.create(at("c"), bytes("v"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        for (CreateMode mode : CreateMode.values()) {
            String path = at("c/" + mode + "-");
            Stat stat = new Stat();
            String got = mode.isTTL() ? zk.create(path, bytes("v"), Ids.OPEN_ACL_UNSAFE, mode, stat, 3_600_000)
                    : zk.create(path, bytes("v"), Ids.OPEN_ACL_UNSAFE, mode, stat);
            same(mode + " path", mode.isSequential() ? path.length() + 10 : path.length(), got.length());
            check(got.startsWith(path), "the path " + got);
            same(mode + " length", 1, stat.getDataLength());
            same(mode + " version", 0, stat.getVersion());
            same(mode + " owner", mode.isEphemeral() ? zk.getSessionId() : 0L, stat.getEphemeralOwner());
            check(stat.getCzxid() > 0 && stat.getCzxid() == stat.getMzxid() && stat.getCtime() == stat.getMtime(), mode + " stat " + stat);
            same(mode + " exists", stat, zk.exists(got, false));
            zk.create(at("c/n-"), null, Ids.OPEN_ACL_UNSAFE, mode.isTTL() ? CreateMode.PERSISTENT_SEQUENTIAL : CreateMode.EPHEMERAL_SEQUENTIAL);
        }
        same("cversion", CreateMode.values().length * 2, zk.exists(at("c"), false).getCversion());
        same("null data", "null", text(zk.getData(at("c") + "/" + new TreeSet<>(zk.getChildren(at("c"), false)).last(), false, null)));
    }

    private void createAsync() throws Exception {
        for (CreateMode mode : CreateMode.values()) {
            if (!mode.isTTL()) {
                CompletableFuture<String> name = new CompletableFuture<>();
                zk.create(at("a1" + mode), bytes("v"), Ids.OPEN_ACL_UNSAFE, mode, (rc, path, ctx, n) -> name.complete(rc + n), "ctx");
                check(get(name).startsWith("0" + at("a1" + mode)), "created " + get(name));
            }
            CompletableFuture<Stat> stat = new CompletableFuture<>();
            zk.create(at("a2" + mode), bytes("vv"), Ids.OPEN_ACL_UNSAFE, mode, (rc, path, ctx, n, s) -> stat.complete(rc == 0 ? s : null),
                    null, mode.isTTL() ? 3_600_000 : -1);
            check(get(stat) != null && get(stat).getDataLength() == 2, mode + " stat " + get(stat));
        }
        CompletableFuture<Integer> code = new CompletableFuture<>();
        zk.create(at("a1" + CreateMode.PERSISTENT), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, (rc, p, ctx, n) -> code.complete(rc), null);
        same("the code", Code.NODEEXISTS.intValue(), get(code));
    }

    private void read() throws Exception {
        String path = zk.create(at("r"), bytes("value"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        zk.create(path + "/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        zk.create(path + "/x/y", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Stat stat = new Stat();
        same("data", "value", text(zk.getData(path, false, stat)));
        same("stat", stat, zk.exists(path, false));
        same("children", List.of("x"), zk.getChildren(path, false));
        Stat again = new Stat();
        same("children", List.of("x"), zk.getChildren(path, false, again));
        same("stat", stat, again);
        same("number of children", 1, stat.getNumChildren());
        same("number of all children", 2, zk.getAllChildrenNumber(path));
        check(zk.exists(path + "/none", false) == null, "a node that is not there");
        same("another client's view", "value", text(other.getData(path, false, null)));
    }

    private void readAsync() throws Exception {
        String path = at("r");
        CompletableFuture<Stat> exists = new CompletableFuture<>();
        CompletableFuture<String> data = new CompletableFuture<>();
        CompletableFuture<List<String>> children = new CompletableFuture<>();
        CompletableFuture<List<String>> children2 = new CompletableFuture<>();
        CompletableFuture<Integer> number = new CompletableFuture<>();
        CompletableFuture<Integer> none = new CompletableFuture<>();
        zk.exists(path, false, (rc, p, ctx, s) -> exists.complete(s), null);
        zk.getData(path, false, (rc, p, ctx, d, s) -> data.complete(rc + text(d) + s.getNumChildren()), null);
        zk.getChildren(path, false, (int rc, String p, Object ctx, List<String> l) -> children.complete(l), null);
        zk.getChildren(path, false, (int rc, String p, Object ctx, List<String> l, Stat s) -> children2.complete(l), null);
        zk.getAllChildrenNumber(path, (rc, p, ctx, n) -> number.complete(n), null);
        zk.getData(path + "/none", false, (rc, p, ctx, d, s) -> none.complete(rc), null);
        same("number of children", 1, get(exists).getNumChildren());
        same("data", "0value1", get(data));
        same("children", List.of("x"), get(children));
        same("children", List.of("x"), get(children2));
        same("all children", 2, get(number));
        same("code", Code.NONODE.intValue(), get(none));
    }

    private void setDelete() throws Exception {
        String path = zk.create(at("s"), bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        same("version", 1, zk.setData(path, bytes("1"), 0).getVersion());
        same("version", 2, zk.setData(path, bytes("2"), -1).getVersion());
        fails("set with an old version", Code.BADVERSION, () -> zk.setData(path, bytes("x"), 1));
        CompletableFuture<Stat> stat = new CompletableFuture<>();
        zk.setData(path, bytes("three"), 2, (rc, p, ctx, s) -> stat.complete(s), null);
        same("length", 5, get(stat).getDataLength());
        fails("delete with an old version", Code.BADVERSION, () -> zk.delete(path, 0));
        CompletableFuture<Integer> bad = new CompletableFuture<>();
        zk.delete(path, 0, (rc, p, ctx) -> bad.complete(rc), null);
        same("code", Code.BADVERSION.intValue(), get(bad));
        zk.delete(path, 3);
        CompletableFuture<Integer> gone = new CompletableFuture<>();
        zk.delete(path, -1, (rc, p, ctx) -> gone.complete(rc), null);
        same("code", Code.NONODE.intValue(), get(gone));
    }

    private void errors() throws Exception {
        String e = zk.create(at("e"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        fails("create again", Code.NODEEXISTS, () -> zk.create(e, null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL));
        fails("create below an ephemeral", Code.NOCHILDRENFOREPHEMERALS,
                () -> zk.create(e + "/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        fails("create without a parent", Code.NONODE, () -> zk.create(at("no/x"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        fails("delete with children", Code.NOTEMPTY, () -> zk.delete(base, -1));
        fails("read of nothing", Code.NONODE, () -> zk.getData(at("no"), false, null));
        fails("children of nothing", Code.NONODE, () -> zk.getChildren(at("no"), false));
        fails("set of nothing", Code.NONODE, () -> zk.setData(at("no"), null, -1));
        fails("no rules", Code.INVALIDACL, () -> zk.create(at("acl0"), null, new ArrayList<>(), CreateMode.PERSISTENT));
        try {
            zk.create("bad", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            throw new Mismatch("a relative path");
        } catch (IllegalArgumentException expected) {
            checks++;
        }
        zk.delete(e, 0);
    }

    private void watches() throws Exception {
        String path = at("w");
        Events data = new Events();
        Events child = new Events();
        Events born = new Events();
        check(zk.exists(path, born) == null, "a node that is not there");
        other.create(path, bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        born.expect(EventType.NodeCreated, path);
        zk.getData(path, data, null);
        zk.getChildren(path, child);
        other.setData(path, bytes("1"), -1);
        other.create(path + "/c", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        data.expect(EventType.NodeDataChanged, path);
        child.expect(EventType.NodeChildrenChanged, path);
        other.setData(path, bytes("2"), -1);
        other.delete(path + "/c", -1);
        zk.sync(path);
        data.expectNone();
        child.expectNone();
        zk.getData(path, data, null);
        zk.getChildren(path, child, new Stat());
        zk.exists(path, born);
        other.delete(path, -1);
        data.expect(EventType.NodeDeleted, path);
        child.expect(EventType.NodeDeleted, path);
        born.expect(EventType.NodeDeleted, path);
        // The default watcher, and a watch set by an asynchronous call.
        zk.exists(path, true);
        CompletableFuture<Integer> set = new CompletableFuture<>();
        zk.exists(path, born, (rc, p, ctx, s) -> set.complete(rc), null);
        same("code", Code.NONODE.intValue(), get(set));
        other.create(path, null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        zk.events.expect(EventType.NodeCreated, path);
        born.expect(EventType.NodeCreated, path);
        other.delete(path, -1);
    }

    private void persistentWatches() throws Exception {
        String path = zk.create(at("p"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Events plain = new Events();
        Events recursive = new Events();
        zk.addWatch(path, plain, AddWatchMode.PERSISTENT);
        CompletableFuture<Integer> set = new CompletableFuture<>();
        zk.addWatch(at("q"), recursive, AddWatchMode.PERSISTENT_RECURSIVE, (rc, p, ctx) -> set.complete(rc), null);
        same("code", 0, get(set));
        for (int i = 0; i < 3; i++) {
            other.setData(path, bytes("" + i), i);
            plain.expect(EventType.NodeDataChanged, path);
        }
        other.create(path + "/c", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        plain.expect(EventType.NodeChildrenChanged, path);
        other.setData(path + "/c", null, -1);
        other.delete(path + "/c", -1);
        plain.expect(EventType.NodeChildrenChanged, path);
        for (String p : List.of(at("q"), at("q/a"), at("q/a/b"))) {
            other.create(p, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            recursive.expect(EventType.NodeCreated, p);
        }
        other.setData(at("q/a/b"), bytes("x"), -1);
        recursive.expect(EventType.NodeDataChanged, at("q/a/b"));
        other.delete(at("q/a/b"), -1);
        recursive.expect(EventType.NodeDeleted, at("q/a/b"));
        zk.removeWatches(at("q"), recursive, WatcherType.Any, false);
        recursive.expect(EventType.PersistentWatchRemoved, at("q"));
        other.delete(at("q/a"), -1);
        zk.sync(base);
        recursive.expectNone();
        plain.expectNone();
    }

    private void removeWatches() throws Exception {
        String path = zk.create(at("x"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Events a = new Events();
        Events b = new Events();
        zk.getData(path, a, null);
        zk.getChildren(path, a);
        zk.getData(path, b, null);
        zk.removeWatches(path, a, WatcherType.Data, false);
        a.expect(EventType.DataWatchRemoved, path);
        zk.setData(path, null, -1);
        b.expect(EventType.NodeDataChanged, path);
        zk.removeAllWatches(path, WatcherType.Children, false);
        a.expect(EventType.ChildWatchRemoved, path);
        fails("removal of what is not there", Code.NOWATCHER, () -> zk.removeWatches(path, b, WatcherType.Data, false));
        CompletableFuture<Integer> none = new CompletableFuture<>();
        zk.removeAllWatches(path, WatcherType.Any, false, (rc, p, ctx) -> none.complete(rc), null);
        same("code", Code.NOWATCHER.intValue(), get(none));
        other.create(path + "/c", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        other.delete(path + "/c", -1);
        zk.sync(path);
        a.expectNone();
        b.expectNone();
    }

    private void multi() throws Exception {
        String m = zk.create(at("m"), bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        List<OpResult> results = zk.multi(List.of(
                Op.create(m + "/a", bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                Op.create(m + "/s-", bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL),
                Op.create(m + "/t", bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 3_600_000),
                Op.create(m + "/k", bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER),
                Op.check(m, 0), Op.setData(m, bytes("2"), 0), Op.delete(m + "/a", 0)));
        same("results", 7, results.size());
        same("path", m + "/s-0000000001", ((OpResult.CreateResult) results.get(1)).getPath());
        same("version", 1, ((OpResult.SetDataResult) results.get(5)).getStat().getVersion());
        check(zk.exists(m + "/a", false) == null, "deleted in the same transaction");
        try {
            zk.multi(List.of(Op.setData(m, bytes("3"), -1), Op.check(m, 77), Op.delete(m + "/k", -1)));
            throw new Mismatch("a transaction with a failing check");
        } catch (KeeperException e) {
            same("code", Code.BADVERSION, e.code());
            List<OpResult> r = e.getResults();
            same("results", 3, r.size());
            same("before", 0, ((OpResult.ErrorResult) r.get(0)).getErr());
            same("failed", Code.BADVERSION.intValue(), ((OpResult.ErrorResult) r.get(1)).getErr());
            same("after", Code.RUNTIMEINCONSISTENCY.intValue(), ((OpResult.ErrorResult) r.get(2)).getErr());
        }
        same("data", "2", text(zk.getData(m, false, null)));
        CompletableFuture<String> async = new CompletableFuture<>();
        zk.multi(List.of(Op.delete(m + "/k", -1), Op.delete(m + "/none", -1)), (rc, p, ctx, r) -> async.complete(rc + "/" + r.size()), null);
        same("asynchronous result", Code.NONODE.intValue() + "/2", get(async));
        same("nothing to do", 0, zk.multi(List.of()).size());
    }

    private void transaction() throws Exception {
        Transaction t = zk.transaction().create(at("tx"), bytes("1"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT).check(at("tx"), 0)
                .setData(at("tx"), bytes("2"), 0).delete(at("tx"), 1);
        same("results", 4, t.commit().size());
        CompletableFuture<Integer> code = new CompletableFuture<>();
        zk.transaction().delete(at("tx"), -1).commit((rc, p, ctx, r) -> code.complete(rc), null);
        same("code", Code.NONODE.intValue(), get(code));
    }

    private void multiRead() throws Exception {
        List<OpResult> r = zk.multi(List.of(Op.getData(at("r")), Op.getChildren(at("r")), Op.getData(at("none"))));
        same("data", "value", text(((OpResult.GetDataResult) r.get(0)).getData()));
        same("children", List.of("x"), ((OpResult.GetChildrenResult) r.get(1)).getChildren());
        same("code", Code.NONODE.intValue(), ((OpResult.ErrorResult) r.get(2)).getErr());
    }

    private void ephemerals() throws Exception {
        String a = zk.create(at("eph1"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        String b = other.create(at("eph2"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        same("own", List.of(a), zk.getEphemerals(at("eph")));
        same("the other's", List.of(b), other.getEphemerals(at("eph")));
        check(zk.getEphemerals().contains(a) && !zk.getEphemerals().contains(b), "all ephemerals");
        CompletableFuture<List<String>> async = new CompletableFuture<>();
        zk.getEphemerals(at("eph"), (rc, ctx, paths) -> async.complete(paths), null);
        same("asynchronously", List.of(a), get(async));
        zk.delete(a, -1);
        other.delete(b, -1);
        same("none", List.of(), zk.getEphemerals(at("eph")));
    }

    private void acl() throws Exception {
        Handle owner = connect(TIMEOUT_MS);
        owner.addAuthInfo("digest", bytes("user:password"));
        String path = owner.create(at("acl"), bytes("secret"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        Stat stat = new Stat();
        List<ACL> acl = owner.getACL(path, stat);
        same("rules", 1, acl.size());
        same("scheme", "digest", acl.get(0).getId().getScheme());
        same("permissions", ZooDefs.Perms.ALL, acl.get(0).getPerms());
        fails("read by another", Code.NOAUTH, () -> zk.getData(path, false, null));
        fails("write by another", Code.NOAUTH, () -> zk.setData(path, null, -1));
        fails("rules by another", Code.NOAUTH, () -> zk.setACL(path, Ids.OPEN_ACL_UNSAFE, -1));
        fails("rules for nobody", Code.INVALIDACL, () -> zk.create(at("acl2"), null, Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT));
        Set<String> ids = new TreeSet<>();
        for (ClientInfo info : owner.whoAmI()) {
            ids.add(info.getAuthScheme() + ":" + info.getUser());
        }
        same("who am I", new TreeSet<>(List.of("digest:user", "ip:127.0.0.1")), ids);
        owner.setACL(path, new ArrayList<>(List.of(new ACL(ZooDefs.Perms.READ, Ids.ANYONE_ID_UNSAFE), new ACL(ZooDefs.Perms.ALL, new Id("auth", "")))), 0);
        same("readable", "secret", text(zk.getData(path, false, stat)));
        same("aversion", 1, stat.getAversion());
        fails("an old version", Code.BADVERSION, () -> owner.setACL(path, Ids.OPEN_ACL_UNSAFE, 0));
        CompletableFuture<Integer> async = new CompletableFuture<>();
        owner.setACL(path, Ids.OPEN_ACL_UNSAFE, -1, (rc, p, ctx, s) -> async.complete(s.getAversion()), null);
        same("aversion", 2, get(async));
        CompletableFuture<List<ACL>> list = new CompletableFuture<>();
        zk.getACL(path, new Stat(), (rc, p, ctx, l, s) -> list.complete(l), null);
        same("open rules", Ids.OPEN_ACL_UNSAFE, get(list));
        owner.close();
    }

    private void sync() throws Exception {
        zk.sync(base);
        CompletableFuture<String> path = new CompletableFuture<>();
        zk.sync(base, (rc, p, ctx) -> path.complete(rc + p), null);
        same("sync", "0" + base, get(path));
    }

    /** Pipelined asynchronous calls: all answered, in order, the numbers without a gap. */
    private void many() throws Exception {
        String path = zk.create(at("many"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        int count = 2000;
        CountDownLatch left = new CountDownLatch(count);
        List<String> names = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            zk.create(path + "/n", bytes("x" + i), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL, (rc, p, ctx, n) -> {
                names.add(rc == 0 ? n : "error " + rc);
                left.countDown();
            }, null);
        }
        check(left.await(PATIENCE_S, TimeUnit.SECONDS), left.getCount() + " calls were not answered");
        for (int i = 0; i < count; i++) {
            same("name " + i, String.format("%s/n%010d", path, i), names.get(i));
        }
        same("children", count, zk.getChildren(path, false).size());
        byte[] large = new byte[1_000_000];
        Arrays.fill(large, (byte) 'v');
        zk.setData(path, large, -1);
        check(Arrays.equals(large, other.getData(path, false, null)), "a large value");
    }

    /** The connection breaks: the same session, the same ephemeral nodes, and the watches go on. */
    private void reconnect() throws Exception {
        String node = zk.create(at("re"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        String mine = zk.create(at("re-e"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        Events data = new Events();
        Events child = new Events();
        Events born = new Events();
        Events persistent = new Events();
        Events recursive = new Events();
        zk.getData(node, data, null);
        zk.getChildren(node, child);
        zk.exists(at("re-new"), born);
        zk.addWatch(node, persistent, AddWatchMode.PERSISTENT);
        zk.addWatch(node, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        long id = zk.getSessionId();
        zk.events.queue.clear();
        zk.getTestable().closeSocket();
        zk.events.expectState(KeeperState.Disconnected);
        zk.events.expectState(KeeperState.SyncConnected);
        same("the session", id, zk.getSessionId());
        check(zk.exists(mine, false) != null, "the ephemeral node is gone");
        other.setData(node, bytes("1"), -1);
        other.create(node + "/c", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        other.create(at("re-new"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        data.expect(EventType.NodeDataChanged, node);
        child.expect(EventType.NodeChildrenChanged, node);
        born.expect(EventType.NodeCreated, at("re-new"));
        recursive.expect(EventType.NodeDataChanged, node);
        recursive.expect(EventType.NodeCreated, node + "/c");
        persistent.expect(EventType.NodeDataChanged, node);
    }

    /** A new handle takes the session of an abandoned one; a wrong password gets nothing. */
    private void takeUp() throws Exception {
        Handle first = connect(TIMEOUT_MS);
        String path = first.create(at("take-up"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        long id = first.getSessionId();
        byte[] password = first.getSessionPasswd();
        first.abandon();
        Handle thief = new Handle(server, TIMEOUT_MS, new Events(), id, new byte[16]);
        thief.events.expectState(KeeperState.Expired);
        thief.close();
        Handle second = new Handle(server, TIMEOUT_MS, new Events(), id, password);
        second.events.expectState(KeeperState.SyncConnected);
        same("the session", id, second.getSessionId());
        same("its nodes", List.of(path), second.getEphemerals());
        second.close();
        check(zk.exists(path, false) == null, "the ephemeral node outlived its session");
    }

    private void expiry() throws Exception {
        Handle silent = connect(4000);
        String path = silent.create(at("expires"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        long id = silent.getSessionId();
        byte[] password = silent.getSessionPasswd();
        Events gone = new Events();
        zk.exists(path, gone);
        long t0 = System.nanoTime();
        silent.abandon();
        gone.expect(EventType.NodeDeleted, path);
        long ms = (System.nanoTime() - t0) / 1_000_000;
        check(ms > 2500, "a session of 4 s expired after " + ms + " ms");
        Handle late = new Handle(server, 4000, new Events(), id, password);
        late.events.expectState(KeeperState.Expired);
        late.close();
    }

    private void restart() throws Exception {
        String node = zk.create(at("rs"), bytes("before"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        String mine = zk.create(at("rs-e"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        String theirs = other.create(at("rs-o"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        zk.create(node + "/s-", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL);
        Stat before = zk.exists(node, false);
        Events data = new Events();
        Events recursive = new Events();
        zk.getData(node, data, null);
        zk.addWatch(node, recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        long id = zk.getSessionId();
        zk.events.queue.clear();
        other.events.queue.clear();
        Process p = new ProcessBuilder("bash", "-c", restart).redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        check(p.waitFor(PATIENCE_S, TimeUnit.SECONDS) && p.exitValue() == 0, "the restart command failed");
        for (Handle h : List.of(zk, other)) {
            h.events.expectState(KeeperState.Disconnected);
            h.events.expectState(KeeperState.SyncConnected);
        }
        same("the session", id, zk.getSessionId());
        same("the node", before, zk.exists(node, false));
        check(zk.exists(mine, false) != null && zk.exists(theirs, false) != null, "ephemeral nodes are gone");
        same("own ephemeral nodes", true, zk.getEphemerals().contains(mine));
        same("the next number", node + "/s-0000000001",
                zk.create(node + "/s-", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL));
        recursive.expect(EventType.NodeCreated, node + "/s-0000000001");
        Stat after = other.setData(node, bytes("after"), 0);
        check(after.getMzxid() > before.getMzxid(), "zxids went back");
        data.expect(EventType.NodeDataChanged, node);
        recursive.expect(EventType.NodeDataChanged, node);
        // Both sessions live on past the timeout after the restart.
        TimeUnit.MILLISECONDS.sleep(TIMEOUT_MS + 4000);
        check(zk.exists(mine, false) != null && zk.exists(theirs, false) != null, "a session expired although it was kept up");
        same("the session", id, zk.getSessionId());
    }

    private void close() throws Exception {
        String path = zk.create(at("last"), null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        zk.close();
        check(other.exists(path, false) == null, "the ephemeral node outlived its session");
        same("the state", ZooKeeper.States.CLOSED, zk.getState());
        fails("a call after close", Code.SESSIONEXPIRED, () -> zk.exists(path, false));
        check(other.close(10_000), "close did not end in time");
    }

    public static void main(String[] args) {
        Opts o = new Opts(args, Set.of("zk", "restart-command", "base", "label", "deadline"), Set.of());
        // Nodes with a time to live are behind this switch in the client, too.
        System.setProperty("zookeeper.extendedTypesEnabled", "true");
        ZkClient t = new ZkClient(o);
        long t0 = System.nanoTime();
        Thread watchdog = new Thread(() -> {
            try {
                TimeUnit.SECONDS.sleep(o.num("deadline", 240));
            } catch (InterruptedException e) {
                return;
            }
            t.report(o, t0, "not finished in " + o.num("deadline", 240) + " s");
            Runtime.getRuntime().halt(1);
        });
        watchdog.setDaemon(true);
        watchdog.start();
        String failure = null;
        try {
            t.run();
        } catch (Mismatch e) {
            failure = e.getMessage();
        } catch (Throwable e) {
            failure = e.toString();
            e.printStackTrace();
        }
        t.report(o, t0, failure);
        Runtime.getRuntime().halt(failure == null ? 0 : 1);
    }

    private void report(Opts o, long t0, String failure) {
        Json j = new Json().put("server", o.str("label", server)).put("ok", failure == null).put("checks", checks)
                .put("seconds", (System.nanoTime() - t0) / 1e9).put("steps", String.join(",", done))
                .put("restarted", done.contains("restart"));
        if (failure != null) {
            j.put("failed_step", step).put("failure", failure.replace('\n', ' '));
        }
        System.out.println(j);
        System.out.flush();
    }
}
