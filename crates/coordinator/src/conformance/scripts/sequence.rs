//! Sequential and ephemeral nodes.

use super::super::request::Request as R;
use super::super::script::{Done, Script};

pub(super) fn sequence(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("b")?;
    s.call("a", R::create("/seq", "", 0))?;
    s.note("the counter belongs to the parent, not to the name; plain children move it, too");
    for (who, path) in
        [("a", "/seq/x-"), ("b", "/seq/x-"), ("a", "/seq/y-"), ("b", "/seq/"), ("a", "/seq/x-")]
    {
        s.call(who, R::create2(path, "", 2))?;
    }
    s.calls(
        "a",
        vec![R::create2("/seq/plain", "", 0), R::create2("/seq/x-", "", 3), R::exists("/seq", false)],
    )?;
    s.note("a deletion does not give a number back");
    s.calls(
        "a",
        vec![
            R::delete("/seq/x-0000000000", -1),
            R::delete("/seq/plain", -1),
            R::create2("/seq/x-", "", 2),
            R::exists("/seq", false),
            R::set("/seq", "data", -1),
            R::create2("/seq/x-", "", 2),
        ],
    )?;
    s.note("a failed create does not use a number up");
    s.calls(
        "a",
        vec![
            R::create2("/seq/x-0000000001", "", 0),
            R::create2("/seq/missing/x-", "", 2),
            R::create2("/seq/x-", "", 2),
            R::children2("/seq", false),
        ],
    )?;
    s.note("a name that is taken by chance");
    s.calls(
        "a",
        vec![R::create("/seq/t-0000000012", "", 0), R::create2("/seq/t-", "", 2), R::exists("/seq", false)],
    )?;
    s.calls("a", vec![R::create2("/seq/t-", "", 2), R::exists("/seq", false)])?;
    s.note("below the root, and a parent that is created again");
    s.calls(
        "a",
        vec![
            R::create("/seq2", "", 0),
            R::create("/seq2/n", "", 2),
            R::create("/seq2/n", "", 2),
            R::delete("/seq2/n0000000000", 0),
            R::delete("/seq2/n0000000001", 0),
            R::delete("/seq2", 0),
            R::create("/seq2", "", 0),
            R::create("/seq2/n", "", 2),
        ],
    )
}

pub(super) fn ephemerals(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("b")?;
    s.calls(
        "a",
        vec![
            R::create("/eph", "", 0),
            R::create2("/eph/a", "v", 1),
            R::create2("/eph/a-", "", 3),
            R::create("/eph/a/child", "", 0),
            R::create("/eph/a/child-", "", 2),
            R::create("/eph/a/child", "", 1),
            R::create("/eph/a", "", 1),
            R::exists("/eph", false),
        ],
    )?;
    s.calls("b", vec![R::create2("/eph/b", "", 1), R::create("/eph/a", "", 1), R::get("/eph/a", false)])?;
    s.note("listing: those of the session that asks, by prefix of the text");
    for prefix in ["/", "/eph", "/eph/a", "/eph/b", "/e", "/missing", ""] {
        s.call("a", R::ephemerals(prefix))?;
    }
    s.call("b", R::ephemerals("/eph"))?;
    s.note("another session may change and delete it");
    s.calls("b", vec![R::set("/eph/a", "by b", 0), R::delete("/eph/a", 1)])?;
    s.calls("a", vec![R::ephemerals("/eph"), R::create2("/eph/a", "anew", 1), R::create("/eph/p", "", 0)])?;
    s.note("the end of a session deletes its nodes");
    s.close("a")?;
    s.calls(
        "b",
        vec![
            R::children2("/eph", false),
            R::exists("/eph/a", false),
            R::delete("/eph/b", -1),
            R::ephemerals("/eph"),
        ],
    )
}
