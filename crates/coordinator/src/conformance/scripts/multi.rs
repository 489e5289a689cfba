//! Transactions, and reads in bulk.

use super::super::request::{Acl, Request as R, op};
use super::super::script::{Done, Script};

pub(super) fn success(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/multi", "", 0))?;
    s.note("nothing to do");
    s.call("a", R::multi(vec![]))?;
    s.note("every kind of step; later ones see what earlier ones did; all have one zxid");
    s.call(
        "a",
        R::multi(vec![
            R::create("/multi/a", "1", 0),
            R::create2("/multi/b", "2", 0),
            R::creating(op::CREATE_CONTAINER, "/multi/c", "", 4),
            R::create_ttl("/multi/t", 5, 36_000_000),
            R::create("/multi/e", "", 1),
            R::create("/multi/a/deep", "", 0),
            R::check("/multi/a", 0),
            R::set("/multi/a", "changed", 0),
            R::check("/multi/a", 1),
            R::set("/multi/a", "again", 1),
            R::delete("/multi/b", 0),
            R::create("/multi/b", "new", 0),
        ]),
    )?;
    for path in ["/multi", "/multi/a", "/multi/a/deep", "/multi/b", "/multi/e"] {
        s.call("a", R::get(path, false))?;
    }
    s.note("checks alone");
    s.calls(
        "a",
        vec![R::multi(vec![R::check("/multi", 0), R::check("/multi/a", -1)]), R::exists("/multi", false)],
    )?;
    s.note("one step");
    s.calls("a", vec![R::multi(vec![R::set("/multi", "x", -1)]), R::multi(vec![R::delete("/multi/e", -1)])])?;
    s.note("create and delete leave traces in the parent only");
    s.call("a", R::multi(vec![R::create("/multi/gone", "", 0), R::delete("/multi/gone", 0)]))?;
    s.call("a", R::children2("/multi", false)).map(drop)
}

pub(super) fn failure(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![R::create("/fail", "", 0), R::create("/fail/there", "", 0), R::create("/fail/e", "", 1)],
    )?;
    let failing = [
        R::create("/fail/there", "", 0),
        R::create("/fail/missing/x", "", 0),
        R::create("/fail/e/x", "", 0),
        R::create("fail", "", 0),
        R::create("/fail/bad", "", 77),
        R::create_with_acl("/fail/acl", vec![]),
        R::create_ttl("/fail/ttl", 5, -5),
        R::set("/fail/missing", "", -1),
        R::set("/fail/there", "", 9),
        R::delete("/fail/missing", -1),
        R::delete("/fail", -1),
        R::delete("/fail/there", 5),
        R::check("/fail/missing", 0),
        R::check("/fail/missing", -1),
        R::check("/fail/there", 3),
    ];
    for step in failing {
        let around =
            |step| R::multi(vec![R::create("/fail/before", "", 0), step, R::create("/fail/after", "", 0)]);
        s.call("a", around(step))?;
    }
    s.note("nothing of all that happened");
    s.calls("a", vec![R::children2("/fail", false), R::exists("/fail/there", false)])?;
    s.note("the first failure counts; in the first and in the last place");
    s.calls(
        "a",
        vec![
            R::multi(vec![
                R::delete("/fail/missing", -1),
                R::create("/fail/there", "", 0),
                R::check("/fail", 5),
            ]),
            R::multi(vec![R::set("/fail", "x", -1), R::set("/fail", "y", -1), R::check("/fail", 0)]),
            R::multi(vec![R::delete("/fail/there", 0), R::check("/fail/there", -1)]),
            R::multi(vec![R::check("/fail", 5)]),
            R::get("/fail", false),
            R::exists("/fail/there", false),
        ],
    )?;
    s.note("counters are as before: a failed create used no number up");
    s.call(
        "a",
        R::multi(vec![R::create("/fail/s-", "", 2), R::create("/fail/s-", "", 3), R::check("/fail", 9)]),
    )?;
    s.calls("a", vec![R::create2("/fail/s-", "", 2), R::ephemerals("/fail")])?;
    s.note("no permission in the middle");
    s.call("a", R::create_with_acl("/fail/closed", vec![Acl::new(1, "world", "anyone")]))?;
    s.call("a", R::multi(vec![R::create("/fail/n", "", 0), R::set("/fail/closed", "", -1)]))?;
    s.call("a", R::exists("/fail/n", false))?;
    s.note("steps that no transaction may have");
    s.connect("b")?;
    s.call("b", R::multi(vec![R::create("/fail/n", "", 0), R::get("/fail", false)]))?;
    s.call("a", R::exists("/fail/n", false)).map(drop)
}

pub(super) fn sequence(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/multiseq", "", 0))?;
    s.call(
        "a",
        R::multi(vec![
            R::create("/multiseq/n-", "", 2),
            R::create2("/multiseq/n-", "", 2),
            R::create("/multiseq/e-", "", 3),
            R::create("/multiseq/p", "", 0),
            R::create("/multiseq/p/n-", "", 2),
            R::create("/multiseq/p/n-", "", 2),
            R::delete("/multiseq/n-0000000000", 0),
            R::create("/multiseq/n-", "", 2),
        ]),
    )?;
    s.calls(
        "a",
        vec![
            R::children2("/multiseq", false),
            R::children2("/multiseq/p", false),
            R::create("/multiseq/n-", "", 2),
        ],
    )?;
    s.note("pipelined transactions");
    let requests =
        (0..4).map(|_| R::multi(vec![R::create("/multiseq/q-", "", 2), R::create("/multiseq/q-", "", 2)]));
    s.send_together("a", requests.collect());
    for _ in 0..4 {
        s.reply("a")?;
    }
    s.call("a", R::exists("/multiseq", false)).map(drop)
}

pub(super) fn watches(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.calls("a", vec![R::create("/mw", "", 0), R::create("/mw/a", "", 0), R::create("/mw/b", "", 0)])?;
    s.calls(
        "w",
        vec![
            R::children("/mw", true),
            R::get("/mw/a", true),
            R::get("/mw/b", true),
            R::exists("/mw/c", true),
            R::exists("/mw/d", true),
        ],
    )?;
    s.note("a failed transaction fires nothing");
    s.call("a", R::multi(vec![R::set("/mw/a", "", -1), R::create("/mw/c", "", 0), R::check("/mw", 8)]))?;
    s.drain("w")?;
    s.call(
        "a",
        R::multi(vec![
            R::set("/mw/a", "", -1),
            R::delete("/mw/b", -1),
            R::create("/mw/c", "", 0),
            R::create("/mw/d", "", 0),
            R::delete("/mw/d", -1),
        ]),
    )?;
    s.drain("w")
}

pub(super) fn reads(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls("a", vec![R::create("/mr", "root", 0), R::create("/mr/a", "1", 0), R::create("/mr/b", "2", 0)])?;
    s.calls(
        "a",
        vec![
            R::multi_read(vec![]),
            R::multi_read(vec![R::get("/mr", false), R::children("/mr", false), R::get("/mr/a", false)]),
            R::multi_read(vec![
                R::get("/mr/a", false),
                R::get("/mr/missing", false),
                R::children("/mr/no", false),
            ]),
            R::multi_read(vec![R::children("/mr/a", false)]),
        ],
    )?;
    s.note("watches in it");
    s.call("a", R::multi_read(vec![R::get("/mr/a", true), R::children("/mr", true)]))?;
    s.calls("a", vec![R::set("/mr/a", "x", -1), R::create("/mr/c", "", 0)])?;
    s.drain("a")?;
    s.note("a step that is no read of this kind");
    s.send("a", R::multi_read(vec![R::exists("/mr", false)]));
    s.reply("a").map(drop)
}
