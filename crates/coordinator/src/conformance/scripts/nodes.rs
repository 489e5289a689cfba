//! Nodes: create, read, change, delete; names, sizes, order of answers.

use super::super::request::{Request as R, op};
use super::super::script::{Done, Script};

pub(super) fn root(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![
            R::exists("/", false),
            R::get("/", false),
            R::children("/", false),
            R::children2("/zookeeper", false),
            R::get_acl("/"),
            R::all_children_number("/"),
            R::ephemerals("/"),
            R::sync("/"),
            R::ping(),
        ],
    )?;
    s.note("for reads the empty path is the root");
    s.calls(
        "a",
        vec![
            R::exists("", false),
            R::get("", false),
            R::children("", false),
            R::get_acl(""),
            R::all_children_number(""),
            R::create("", "", 0),
            R::create("", "", 2),
            R::set("", "", -1),
            R::delete("", -1),
        ],
    )?;
    s.note("the root and the server's own nodes cannot be deleted or created");
    s.calls(
        "a",
        vec![
            R::create("/", "", 0),
            R::delete("/", -1),
            R::delete("/zookeeper", -1),
            R::delete("/zookeeper/quota", -1),
            R::create("/zookeeper", "", 0),
        ],
    )?;
    s.note("a child of the root changes the root");
    s.calls(
        "a",
        vec![R::create2("/root-child", "x", 0), R::exists("/", false), R::delete("/root-child", 0)],
    )?;
    s.calls(
        "a",
        vec![R::exists("/", false), R::set("/", "value", -1), R::get("/", false), R::set("/", "", -1)],
    )
}

pub(super) fn nodes(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![
            R::create("/nodes", "first", 0),
            R::create("/nodes", "again", 0),
            R::create2("/nodes/child", "value", 0),
            R::create("/nodes/missing/child", "", 0),
            R::exists("/nodes", false),
            R::get("/nodes/child", false),
            R::children("/nodes", false),
            R::children2("/nodes", false),
            R::children("/nodes/child", false),
            R::delete("/nodes", -1),
            R::delete("/nodes/child", -1),
            R::delete("/nodes/child", -1),
            R::exists("/nodes/child", false),
            R::exists("/nodes", false),
        ],
    )?;
    s.note("a node that is created again is a new node; the parent goes on counting");
    s.calls(
        "a",
        vec![
            R::create2("/nodes/child", "new", 0),
            R::create2("/nodes/b", "", 0),
            R::children2("/nodes", false),
        ],
    )?;
    s.note("null data");
    let null = R::Create {
        opcode: op::CREATE2,
        path: "/nodes/null".into(),
        data: None,
        acl: Some(super::super::request::open_acl()),
        flags: 0,
        ttl: 0,
    };
    s.call("a", null)?;
    s.call("a", R::get("/nodes/null", false))?;
    s.calls("a", vec![R::set("/nodes/null", "some", -1), R::get("/nodes/null", false)])?;
    s.call("a", R::SetData { path: "/nodes/null".into(), data: None, version: -1 })?;
    s.calls(
        "a",
        vec![R::get("/nodes/null", false), R::create2("/nodes/empty", "", 0), R::get("/nodes/empty", false)],
    )?;
    s.note("bytes that are no text, names that are no ASCII");
    s.calls(
        "a",
        vec![
            R::create2("/nodes/größe-名", "\u{0}\u{1}ÿ", 0),
            R::get("/nodes/größe-名", false),
            R::create2("/nodes/with space", "", 0),
            R::children("/nodes", false),
            R::all_children_number("/nodes"),
            R::all_children_number("/nodes/b"),
        ],
    )
}

pub(super) fn reads(s: &mut Script) -> Done {
    s.connect("a")?;
    s.note("a missing node");
    s.calls(
        "a",
        vec![
            R::exists("/reads", false),
            R::get("/reads", false),
            R::children("/reads", false),
            R::children2("/reads", false),
            R::set("/reads", "", -1),
            R::delete("/reads", -1),
            R::get_acl("/reads"),
            R::set_acl("/reads", super::super::request::open_acl(), -1),
            R::sync("/reads"),
            R::ephemerals("/reads"),
            R::all_children_number("/reads"),
            R::create("/reads/child", "", 0),
        ],
    )?;
    s.note("sync answers with the path as it was asked for");
    s.calls(
        "a",
        vec![R::create("/reads", "", 0), R::sync("/reads"), R::sync("/"), R::sync("no path at all")],
    )?;
    s.note("a tree");
    for path in ["/reads/a", "/reads/a/b", "/reads/a/b/c", "/reads/d"] {
        s.call("a", R::create(path, path, 0))?;
    }
    s.calls(
        "a",
        vec![
            R::all_children_number("/reads"),
            R::all_children_number("/reads/a"),
            R::children2("/reads", false),
            R::children2("/reads/a", false),
            R::children2("/reads/a/b/c", false),
        ],
    )
}

pub(super) fn versions(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![
            R::create2("/versions", "0", 0),
            R::set("/versions", "one", 0),
            R::set("/versions", "two", 0),
            R::set("/versions", "two", 2),
            R::set("/versions", "two", 1),
            R::set("/versions", "three", -1),
            R::set("/versions", "four", -2),
            R::get("/versions", false),
            R::delete("/versions", 0),
            R::delete("/versions", 4),
            R::delete("/versions", -2),
            R::create2("/versions/x", "", 0),
            R::delete("/versions", 9),
            R::delete("/versions", 3),
            R::delete("/versions/x", 0),
            R::exists("/versions", false),
            R::delete("/versions", 3),
            R::exists("/versions", false),
        ],
    )?;
    s.note("an equal value is a change, too");
    s.calls(
        "a",
        vec![
            R::create2("/versions", "same", 0),
            R::set("/versions", "same", 0),
            R::set("/versions", "same", 1),
        ],
    )
}

pub(super) fn create_modes(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/modes", "", 0))?;
    for flags in 0..=6 {
        for opcode in [op::CREATE, op::CREATE2, op::CREATE_CONTAINER] {
            s.call("a", R::creating(opcode, &format!("/modes/op{opcode}-flags{flags}-"), "v", flags))?;
        }
        s.call("a", R::create_ttl(&format!("/modes/op21-flags{flags}-"), flags, 36_000_000))?;
    }
    for flags in [7, 8, -1, 100, i32::MAX] {
        s.call("a", R::create(&format!("/modes/bad{flags}"), "", flags))?;
    }
    s.call("a", R::children2("/modes", false))?;
    s.call("a", R::ephemerals("/modes")).map(drop)
}

pub(super) fn containers_and_ttl(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![
            R::create("/kept", "", 0),
            R::creating(op::CREATE_CONTAINER, "/kept/container", "data", 4),
            R::exists("/kept/container", false),
            R::create("/kept/container/child", "", 0),
            R::create("/kept/container/ephemeral", "", 1),
            R::create("/kept/container/s-", "", 2),
            R::exists("/kept/container", false),
        ],
    )?;
    s.note("times to live: from 1 to 2^40 - 1 ms");
    for ttl in [0, -1, 1 << 40, i64::MAX, (1 << 40) - 1, 36_000_000] {
        s.call("a", R::create_ttl(&format!("/kept/ttl{ttl}"), 5, ttl))?;
        s.call("a", R::exists(&format!("/kept/ttl{ttl}"), false))?;
    }
    s.calls(
        "a",
        vec![R::create_ttl("/kept/ttl-", 6, 36_000_000), R::create_ttl("/kept/ttl-", 6, 36_000_000)],
    )?;
    s.calls("a", vec![R::create("/kept/ttl36000000/child", "", 0), R::ephemerals("/kept")])?;
    s.note("a container that is empty again, and a node whose time is over, go by themselves");
    s.calls(
        "a",
        vec![
            R::exists("/kept/container", true),
            R::delete("/kept/container/child", -1),
            R::delete("/kept/container/ephemeral", -1),
            R::delete("/kept/container/s-0000000002", -1),
        ],
    )?;
    s.wait_for_event("a", 90)?;
    s.calls("a", vec![R::create_ttl("/kept/short", 5, 100), R::exists("/kept/short", true)])?;
    s.wait_for_event("a", 90)?;
    s.call("a", R::children("/kept", false)).map(drop)
}

pub(super) fn bad_paths(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/paths", "", 0))?;
    let bad = [
        "paths",
        "/paths/",
        "//",
        "//paths",
        "/paths//x",
        "/paths/.",
        "/paths/..",
        "/paths/./x",
        "/paths/../x",
        "/.",
        "/..",
        "/paths/\u{0}",
        "/paths/a\u{0}b",
        "/paths/\u{1}",
        "/paths/\u{1f}",
        "/paths/\u{7f}",
        "/paths/\u{9f}",
        "/paths/\u{f8ff}",
        "/paths/\u{fffd}",
        "/paths/\u{10000}",
    ];
    for path in bad {
        s.note(&format!("path {path:?}"));
        s.call("a", R::create(path, "", 0))?;
        if path.starts_with("/paths") {
            s.call("a", R::create(path, "", 2))?;
        }
        s.calls("a", vec![R::exists(path, false), R::get(path, false), R::children(path, false)])?;
        s.calls("a", vec![R::set(path, "", -1), R::delete(path, -1), R::get_acl(path)])?;
    }
    s.note("names that only look bad");
    for path in
        ["/paths/...", "/paths/.hidden", "/paths/a.", "/paths/..a", "/paths/ ", "/paths/\u{a0}", "/paths/%2f"]
    {
        s.call("a", R::create(path, "", 0))?;
    }
    s.call("a", R::children("/paths", false))?;
    s.note("reserved name");
    s.calls("a", vec![R::create("/zookeeper/mine", "", 0), R::delete("/zookeeper/mine", -1)])
}

pub(super) fn large_values(s: &mut Script) -> Done {
    s.connect("a")?;
    // 1 MiB - 1 is ZooKeeper's default for a frame; the request has 60 bytes besides the value here.
    let text = |size: usize| "v".repeat(size);
    s.calls(
        "a",
        vec![
            R::create("/large", "", 0),
            R::create2("/large/a", &text(1_000_000), 0),
            R::get("/large/a", false),
            R::set("/large/a", &text(1_048_000), 0),
            R::get("/large/a", false),
            R::exists("/large/a", false),
        ],
    )?;
    s.note("the largest frame that is taken is 1,048,575 bytes");
    let overhead = R::set("/large/a", "", -1).encode(0).len();
    s.calls("a", vec![R::set("/large/a", &text(1_048_575 - overhead), -1), R::exists("/large/a", false)])?;
    s.note("one byte more ends the connection, not the session");
    let resume = s.resume("a");
    s.send("a", R::set("/large/a", &text(1_048_576 - overhead), -1));
    s.closed("a")?;
    s.connect_with("a", resume)?;
    s.calls("a", vec![R::exists("/large/a", false)])?;
    s.note("a long path, many children");
    let deep = format!("/large/{}", "n".repeat(5000));
    s.calls("a", vec![R::create(&deep, "", 0), R::delete(&deep, 0)])?;
    s.call("a", R::create("/large/many", "", 0))?;
    let children =
        (0..20).map(|index| R::create(&format!("/large/many/{index:06}-{}", text(50)), "", 0)).collect();
    s.call("a", R::multi(children))?;
    s.call("a", R::exists("/large/many", false)).map(drop)
}

pub(super) fn pipeline(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/pipeline", "", 0))?;
    s.note("requests sent in one write are answered in their order, reads see the writes before them");
    let requests = vec![
        R::create("/pipeline/a", "1", 0),
        R::exists("/pipeline/a", false),
        R::set("/pipeline", "2", 0),
        R::get("/pipeline", false),
        R::get("/pipeline/missing", false),
        R::ping(),
        R::sync("/pipeline"),
        R::create("/pipeline/a", "", 0),
        R::create("/pipeline/s-", "", 2),
        R::create("/pipeline/s-", "", 2),
        R::children2("/pipeline", false),
        R::delete("/pipeline/a", 0),
        R::exists("/pipeline/a", false),
        R::multi(vec![R::create("/pipeline/m", "", 0), R::delete("/pipeline/m", 0)]),
        R::children("/pipeline", false),
    ];
    let count = requests.len();
    s.send_together("a", requests);
    for _ in 0..count {
        s.reply("a")?;
    }
    s.note("forty writes at once");
    let requests: Vec<R> = (0..40).map(|_| R::set("/pipeline", "x", -1)).collect();
    s.send_together("a", requests);
    for _ in 0..40 {
        s.reply("a")?;
    }
    // Nothing behind it: ZooKeeper answers that with SessionExpired, or not at all, as it happens.
    s.note("a close at once with a request before it");
    s.send_together("a", vec![R::exists("/pipeline", false), R::close()]);
    s.closed("a")
}
