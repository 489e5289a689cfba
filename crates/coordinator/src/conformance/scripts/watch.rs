//! Watches: one-time, persistent, recursive; their removal and their return after a reconnection.

use super::super::request::{Request as R, WatchLists, op};
use super::super::script::{Done, Script};

const CHILDREN: i32 = 1;
const DATA: i32 = 2;
const ANY: i32 = 3;
const PERSISTENT: i32 = 0;
const RECURSIVE: i32 = 1;

pub(super) fn data(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/wd", "", 0))?;
    s.note("getData: changed, deleted; not for children");
    s.calls("w", vec![R::get("/wd", true)])?;
    s.calls("a", vec![R::create("/wd/c", "", 0), R::delete("/wd/c", -1), R::set("/wd", "1", -1)])?;
    s.drain("w")?;
    s.calls("w", vec![R::get("/wd", true)])?;
    s.call("a", R::set_acl("/wd", super::super::request::open_acl(), -1))?;
    s.call("a", R::delete("/wd", -1))?;
    s.drain("w")?;
    s.note("getData of a missing node leaves no watch, exists does");
    s.calls("w", vec![R::get("/wd", true)])?;
    s.call("a", R::create("/wd", "", 0))?;
    s.drain("w")?;
    s.call("a", R::delete("/wd", -1))?;
    s.calls("w", vec![R::exists("/wd", true)])?;
    s.call("a", R::create("/wd", "", 0))?;
    s.drain("w")?;
    s.note("exists of a node: changed, deleted");
    s.calls("w", vec![R::exists("/wd", true)])?;
    s.call("a", R::set("/wd", "2", -1))?;
    s.drain("w")?;
    s.calls("w", vec![R::exists("/wd", true)])?;
    s.call("a", R::delete("/wd", -1))?;
    s.drain("w")?;
    s.note("a refused change fires nothing");
    s.call("a", R::create("/wd", "", 0))?;
    s.calls("w", vec![R::get("/wd", true)])?;
    s.calls("a", vec![R::set("/wd", "", 7), R::delete("/wd", 7)])?;
    s.drain("w")
}

pub(super) fn children(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/wc", "", 0))?;
    s.note("created, deleted; not for data of the node or of a child, nor for grandchildren");
    s.calls("w", vec![R::children("/wc", true)])?;
    s.calls("a", vec![R::set("/wc", "x", -1), R::create("/wc/c", "", 0)])?;
    s.drain("w")?;
    s.calls("w", vec![R::children2("/wc", true)])?;
    s.calls(
        "a",
        vec![
            R::set("/wc/c", "x", -1),
            R::create("/wc/c/d", "", 0),
            R::delete("/wc/c/d", -1),
            R::delete("/wc/c", -1),
        ],
    )?;
    s.drain("w")?;
    s.note("the node itself goes");
    s.calls("w", vec![R::children("/wc", true)])?;
    s.call("a", R::delete("/wc", -1))?;
    s.drain("w")?;
    s.note("a missing node leaves no watch");
    s.calls("w", vec![R::children("/wc", true)])?;
    s.calls("a", vec![R::create("/wc", "", 0), R::create("/wc/x", "", 0)])?;
    s.drain("w")?;
    s.note("child and data watch of a node that goes: one event for both, and one for the parent");
    s.calls(
        "w",
        vec![
            R::children("/wc/x", true),
            R::get("/wc/x", true),
            R::exists("/wc/x", true),
            R::children("/wc", true),
        ],
    )?;
    s.call("a", R::delete("/wc/x", -1))?;
    s.drain("w")
}

pub(super) fn once(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/wo", "", 0))?;
    s.note("armed twice, fires once; then not again");
    s.calls("w", vec![R::get("/wo", true), R::get("/wo", true), R::exists("/wo", true)])?;
    s.calls("a", vec![R::set("/wo", "1", -1), R::set("/wo", "2", -1)])?;
    s.drain("w")?;
    s.note("a read without a watch does not disarm");
    s.calls("w", vec![R::get("/wo", true), R::get("/wo", false)])?;
    s.call("a", R::set("/wo", "3", -1))?;
    s.drain("w")?;
    s.note("two sessions");
    s.calls("w", vec![R::get("/wo", true)])?;
    s.calls("a", vec![R::get("/wo", true)])?;
    s.call("a", R::set("/wo", "4", -1))?;
    s.drain("w")?;
    s.drain("a")
}

pub(super) fn order(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/word", "", 0))?;
    s.note("an own change: the event comes before the answer");
    s.calls("a", vec![R::get("/word", true), R::set("/word", "1", -1)])?;
    s.calls("a", vec![R::children("/word", true), R::create("/word/c", "", 0)])?;
    s.calls("a", vec![R::exists("/word/c", true), R::children("/word", true), R::delete("/word/c", -1)])?;
    s.note("another's change: the event comes before an answer that shows it");
    s.calls("w", vec![R::get("/word", true), R::children("/word", true), R::exists("/word/d", true)])?;
    s.calls("a", vec![R::set("/word", "2", -1), R::create("/word/d", "", 0)])?;
    s.calls("w", vec![R::get("/word", false)])?;
    s.note("events come in the order of the changes");
    for index in 0..6 {
        s.call("w", R::exists(&format!("/word/n{index}"), true))?;
    }
    for index in [3, 1, 5, 0, 4, 2] {
        s.call("a", R::create(&format!("/word/n{index}"), "", 0))?;
    }
    s.drain("w")?;
    s.note("pipelined with the change");
    s.send_together(
        "a",
        vec![
            R::get("/word", true),
            R::set("/word", "3", -1),
            R::get("/word", true),
            R::set("/word", "4", -1),
        ],
    );
    for _ in 0..4 {
        s.reply("a")?;
    }
    Ok(())
}

pub(super) fn persistent(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("w", R::add_watch("/wp", PERSISTENT))?;
    s.note("every change of the node and of its list of children, again and again");
    s.calls(
        "a",
        vec![
            R::create("/wp", "", 0),
            R::set("/wp", "1", -1),
            R::set("/wp", "2", -1),
            R::create("/wp/c", "", 0),
            R::set("/wp/c", "1", -1),
            R::create("/wp/c/d", "", 0),
            R::delete("/wp/c/d", -1),
            R::delete("/wp/c", -1),
            R::delete("/wp", -1),
            R::create("/wp", "", 0),
        ],
    )?;
    s.drain("w")?;
    s.note("together with one-time watches: one event");
    s.calls("w", vec![R::get("/wp", true), R::children("/wp", true), R::add_watch("/wp", PERSISTENT)])?;
    s.calls(
        "a",
        vec![
            R::set("/wp", "3", -1),
            R::set("/wp", "4", -1),
            R::create("/wp/c", "", 0),
            R::create("/wp/d", "", 0),
        ],
    )?;
    s.drain("w")?;
    s.note("modes and paths that are not");
    s.calls("w", vec![R::add_watch("/wp", 2)])?;
    s.calls("w", vec![R::add_watch("/wp", -1)])?;
    s.calls("w", vec![R::add_watch("wp", 0)])?;
    s.calls("w", vec![R::add_watch("", 0)])?;
    s.call("w", R::add_watch("/wp/missing", 0)).map(drop)
}

pub(super) fn recursive(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("w", R::add_watch("/wr", RECURSIVE))?;
    s.note("every node at and below it; no events for lists of children");
    s.calls(
        "a",
        vec![
            R::create("/wr", "", 0),
            R::create("/wr/c", "", 0),
            R::create("/wr/c/d", "", 0),
            R::set("/wr/c/d", "1", -1),
            R::set("/wr", "1", -1),
            R::delete("/wr/c/d", -1),
            R::create("/wrx", "", 0),
            R::delete("/wrx", -1),
            R::multi(vec![R::create("/wr/m", "", 0), R::set("/wr/c", "m", -1), R::delete("/wr/m", -1)]),
        ],
    )?;
    s.drain("w")?;
    s.note("together with one-time watches below");
    s.calls("w", vec![R::get("/wr/c", true), R::children("/wr/c", true), R::children("/wr", true)])?;
    s.calls(
        "a",
        vec![
            R::set("/wr/c", "2", -1),
            R::create("/wr/c/e", "", 0),
            R::delete("/wr/c/e", -1),
            R::delete("/wr/c", -1),
        ],
    )?;
    s.drain("w")?;
    s.note("persistent at the same node: the later mode wins");
    s.call("w", R::add_watch("/wr", PERSISTENT))?;
    s.calls("a", vec![R::create("/wr/f", "", 0), R::set("/wr/f", "", -1), R::set("/wr", "2", -1)])?;
    s.drain("w")?;
    s.call("w", R::add_watch("/wr", RECURSIVE))?;
    s.calls("a", vec![R::create("/wr/g", "", 0), R::set("/wr/f", "", -1)])?;
    s.drain("w")?;
    s.note("on everything");
    s.call("w", R::remove_watches("/wr", ANY))?;
    s.drain("w")?;
    s.call("w", R::add_watch("/", RECURSIVE))?;
    s.calls("a", vec![R::create("/wrtop", "", 0), R::delete("/wrtop", -1)])?;
    s.drain("w")
}

pub(super) fn remove(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/wx", "", 0))?;
    s.note("nothing to remove");
    for kind in [CHILDREN, DATA, ANY] {
        s.calls("w", vec![R::check_watches("/wx", kind), R::remove_watches("/wx", kind)])?;
    }
    s.note("each kind by itself");
    s.calls("w", vec![R::get("/wx", true), R::children("/wx", true)])?;
    for kind in [CHILDREN, DATA, ANY] {
        s.call("w", R::check_watches("/wx", kind))?;
    }
    s.calls(
        "w",
        vec![
            R::remove_watches("/wx", DATA),
            R::check_watches("/wx", DATA),
            R::check_watches("/wx", CHILDREN),
        ],
    )?;
    s.calls("a", vec![R::set("/wx", "1", -1)])?;
    s.drain("w")?;
    s.calls("w", vec![R::remove_watches("/wx", CHILDREN), R::check_watches("/wx", ANY)])?;
    s.call("a", R::create("/wx/c", "", 0))?;
    s.drain("w")?;
    s.note("both at once");
    s.calls("w", vec![R::get("/wx", true), R::children("/wx", true), R::remove_watches("/wx", ANY)])?;
    s.calls("a", vec![R::set("/wx", "2", -1), R::delete("/wx/c", -1)])?;
    s.drain("w")?;
    s.note("a watch for a node that is not there");
    s.calls(
        "w",
        vec![R::exists("/wx/n", true), R::check_watches("/wx/n", DATA), R::remove_watches("/wx/n", DATA)],
    )?;
    s.call("a", R::create("/wx/n", "", 0))?;
    s.drain("w")?;
    s.note("persistent ones");
    for mode in [PERSISTENT, RECURSIVE] {
        s.call("w", R::add_watch("/wx", mode))?;
        for kind in [CHILDREN, DATA, ANY] {
            s.call("w", R::check_watches("/wx", kind))?;
        }
        s.calls("w", vec![R::remove_watches("/wx", ANY), R::check_watches("/wx", ANY)])?;
        s.call("a", R::set("/wx", "3", -1))?;
        s.drain("w")?;
    }
    s.note("another session's watches stay");
    s.calls("a", vec![R::get("/wx", true)])?;
    s.calls("w", vec![R::check_watches("/wx", ANY), R::remove_watches("/wx", ANY)])?;
    s.call("w", R::set("/wx", "4", -1))?;
    s.drain("a")?;
    s.note("kinds that are not");
    s.call("w", R::get("/wx", true))?;
    s.calls("w", vec![R::check_watches("/wx", 0)])?;
    s.calls("w", vec![R::remove_watches("/wx", 9)])?;
    s.calls("w", vec![R::remove_watches("wx", ANY)])
}

fn again(s: &mut Script, who: &'static str) -> Done {
    let resume = s.resume(who);
    s.drop_connection(who);
    s.connect_with(who, resume)
}

fn set(s: &mut Script, opcode: i32, relative_zxid: i64, lists: [&[&str]; 5]) -> R {
    let symbol = s.symbol(relative_zxid);
    let lists: WatchLists = lists.map(|list| list.iter().map(|path| path.to_string()).collect());
    R::SetWatches { opcode, relative_zxid, symbol, lists }
}

pub(super) fn set_watches(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/ws", "", 0))?;
    for path in ["/ws/same", "/ws/changed", "/ws/gone", "/ws/kids", "/ws/nokids", "/ws/kids/x"] {
        s.call("a", R::create(path, "", 0))?;
    }
    let seen = s.call("a", R::set("/ws", "seen", -1))?.zxid;
    for opcode in [op::SET_WATCHES, op::SET_WATCHES2] {
        s.note("nothing was missed: nothing comes, the watches are back");
        again(s, "w")?;
        let now = s.call("a", R::set("/ws", "now", -1))?.zxid;
        let request =
            set(s, opcode, now, [&["/ws/same", "/ws/changed"], &["/ws/new"], &["/ws/kids"], &[], &[]]);
        s.call("w", request)?;
        s.drain("w")?;
        s.calls(
            "a",
            vec![R::set("/ws/same", "", -1), R::create("/ws/new", "", 0), R::create("/ws/kids/y", "", 0)],
        )?;
        s.drain("w")?;
        s.calls("a", vec![R::delete("/ws/new", -1), R::delete("/ws/kids/y", -1)])?;
    }
    s.note("what was missed comes at once, before the answer");
    s.calls(
        "a",
        vec![
            R::set("/ws/changed", "", -1),
            R::delete("/ws/gone", -1),
            R::create("/ws/born", "", 0),
            R::create("/ws/kids/z", "", 0),
        ],
    )?;
    again(s, "w")?;
    // Groups by themselves: the order among the lists is the server's, within a list it is ours.
    let request =
        set(s, op::SET_WATCHES, seen, [&["/ws/changed", "/ws/gone", "/ws/nokids"], &[], &[], &[], &[]]);
    s.call("w", request)?;
    let request = set(s, op::SET_WATCHES, seen, [&[], &["/ws/born", "/ws/unborn"], &[], &[], &[]]);
    s.call("w", request)?;
    let request =
        set(s, op::SET_WATCHES2, seen, [&[], &[], &["/ws/kids", "/ws/nokids", "/ws/gone"], &[], &[]]);
    s.call("w", request)?;
    let request = set(s, op::SET_WATCHES2, seen, [&["/ws/changed"], &["/ws/born"], &["/ws/kids"], &[], &[]]);
    s.call("w", request)?;
    s.note("those that had nothing to tell are armed");
    s.calls(
        "a",
        vec![R::set("/ws/nokids", "", -1), R::create("/ws/unborn", "", 0), R::create("/ws/nokids/n", "", 0)],
    )?;
    s.drain("w")?;
    s.note("those that told are not");
    s.calls(
        "a",
        vec![R::set("/ws/changed", "", -1), R::set("/ws/born", "", -1), R::create("/ws/kids/w", "", 0)],
    )?;
    s.drain("w")?;
    s.note("empty lists");
    let request = set(s, op::SET_WATCHES, seen, [&[], &[], &[], &[], &[]]);
    s.call("w", request)?;
    let request = set(s, op::SET_WATCHES2, seen, [&[], &[], &[], &[], &[]]);
    s.call("w", request).map(drop)
}

pub(super) fn set_persistent(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    let seen = s.call("a", R::create("/wsp", "", 0))?.zxid;
    s.calls("w", vec![R::add_watch("/wsp", PERSISTENT), R::add_watch("/wsp/r", RECURSIVE)])?;
    s.note("a connection that breaks takes its watches with it");
    again(s, "w")?;
    s.calls("a", vec![R::set("/wsp", "1", -1), R::create("/wsp/r", "", 0), R::create("/wsp/r/s", "", 0)])?;
    s.drain("w")?;
    s.note("persistent watches are back, but do not tell what was missed");
    let request = set(s, op::SET_WATCHES2, seen, [&[], &[], &[], &["/wsp"], &["/wsp/r"]]);
    s.call("w", request)?;
    s.drain("w")?;
    s.calls(
        "a",
        vec![
            R::set("/wsp", "2", -1),
            R::create("/wsp/c", "", 0),
            R::set("/wsp/r/s", "1", -1),
            R::set("/wsp/r/s", "2", -1),
        ],
    )?;
    s.drain("w")
}

pub(super) fn other_session(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.call("a", R::create("/wa", "", 0))?;
    s.note("ephemeral nodes of a session that ends");
    s.connect("e")?;
    s.calls("e", vec![R::create("/wa/e1", "", 1)])?;
    s.calls("w", vec![R::exists("/wa/e1", true), R::children("/wa", true), R::add_watch("/wa", RECURSIVE)])?;
    s.close("e")?;
    s.drain("w")?;
    s.note("watches of a session that ended are no burden");
    s.close("w")?;
    s.calls("a", vec![R::create("/wa/x", "", 0), R::set("/wa", "", -1)])
}
