//! Sessions: opened, taken up, refused, moved, closed, expired.

use super::super::connection::Connect;
use super::super::request::Request as R;
use super::super::script::{Done, Script};

pub(super) fn connect(s: &mut Script) -> Done {
    s.note("timeouts: granted between 2 and 20 ticks of 2 s");
    for timeout_ms in [30_000, 1, 0, -5, 3_999, 4_000, 4_001, 40_000, 40_001, i32::MAX] {
        s.connect_with("a", Connect { timeout_ms, ..Connect::default() })?;
        s.close("a")?;
    }
    s.note("as clients before 3.4 do, without the last byte; and with a wish for a read-only server");
    s.connect_with("a", Connect { read_only: None, ..Connect::default() })?;
    s.close("a")?;
    s.connect_with("a", Connect { read_only: Some(true), ..Connect::default() })?;
    s.close("a")?;
    s.note("passwords of other lengths for a new session");
    for size in [0, 8, 64] {
        s.connect_with("a", Connect { password: vec![1; size], ..Connect::default() })?;
        s.close("a")?;
    }
    s.note("another protocol version");
    s.connect_with("a", Connect { protocol_version: 7, ..Connect::default() })?;
    s.close("a")?;
    s.note("a client that has seen more than this server has");
    s.open("a")?;
    let frame = Connect { last_zxid: i64::MAX, ..Connect::default() }.encode();
    let mut bytes = u32::try_from(frame.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend_from_slice(&frame);
    s.send_bytes("a", "connect lastZxid=2^63-1", &bytes);
    s.closed("a")
}

pub(super) fn resume(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls("a", vec![R::create("/resume", "", 0), R::create("/resume/e", "", 1)])?;
    s.note("the same session on a new connection keeps its ephemeral nodes");
    let resume = s.resume("a");
    s.drop_connection("a");
    s.connect_with("a", resume)?;
    s.calls("a", vec![R::exists("/resume/e", false), R::ephemerals("/"), R::create2("/resume/f", "", 1)])?;
    s.note("a timeout asked for anew is granted anew");
    let resume = Connect { timeout_ms: 10_000, ..s.resume("a") };
    s.drop_connection("a");
    s.connect_with("a", resume)?;
    s.call("a", R::children("/resume", false))?;
    s.note("after the end there is nothing to take up");
    let resume = s.resume("a");
    s.close("a")?;
    s.connect_with("a", resume)?;
    s.closed("a")?;
    s.connect("b")?;
    s.call("b", R::children("/resume", false)).map(drop)
}

pub(super) fn resume_refused(s: &mut Script) -> Done {
    s.note("unknown sessions");
    for session_id in [1, 0x1234_5678_9abc, -1, i64::MAX] {
        s.connect_with("a", Connect { session_id, ..Connect::default() })?;
        s.closed("a")?;
    }
    s.note("a wrong password changes nothing about the session");
    s.connect("owner")?;
    s.calls("owner", vec![R::create("/refused", "", 1)])?;
    let right = s.resume("owner");
    for password in [
        vec![0; 16],
        vec![7; 16],
        vec![],
        right.password[..15].to_vec(),
        [&right.password[..], &[0]].concat(),
    ] {
        s.connect_with("thief", Connect { password, ..right.clone() })?;
        s.closed("thief")?;
    }
    s.connect("b")?;
    s.call("b", R::exists("/refused", false))?;
    s.note("the owner takes it up again with the right one");
    s.connect_with("owner", right)?;
    s.calls("owner", vec![R::ephemerals("/")])
}

pub(super) fn close(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("w")?;
    s.calls("a", vec![R::create("/close", "", 0), R::create("/close/e", "", 1)])?;
    s.calls("w", vec![R::exists("/close/e", true), R::children("/close", true)])?;
    s.note("its ephemeral node is gone when the answer is there");
    s.close("a")?;
    s.calls("w", vec![R::children2("/close", false)])?;
    s.note("a connection that just ends leaves the session");
    s.connect("a")?;
    s.calls("a", vec![R::create("/close/e", "", 1)])?;
    s.end_sending("a");
    s.closed("a")?;
    s.call("w", R::exists("/close/e", false))?;
    s.calls("w", vec![R::delete("/close/e", -1)])
}

pub(super) fn moved(s: &mut Script) -> Done {
    s.connect("old")?;
    s.calls("old", vec![R::create("/moved", "", 1), R::get("/moved", true)])?;
    let resume = s.resume("old");
    s.note("a second connection takes the session over; the first is closed");
    s.connect_with("new", resume)?;
    s.closed("old")?;
    s.calls("new", vec![R::exists("/moved", false), R::set("/moved", "", -1)])?;
    s.drain("new")?;
    s.close("new")?;
    s.connect("b")?;
    s.call("b", R::exists("/moved", false)).map(drop)
}

pub(super) fn expiry(s: &mut Script) -> Done {
    s.connect("w")?;
    s.call("w", R::create("/expiry", "", 0))?;
    s.connect_with("a", Connect { timeout_ms: 4_000, ..Connect::default() })?;
    s.calls(
        "a",
        vec![R::create("/expiry/a", "", 1), R::create("/expiry/b", "", 1), R::create("/expiry/p", "", 0)],
    )?;
    s.note("silent, but connected");
    s.call("w", R::exists("/expiry/a", true))?;
    let resume = s.resume("a");
    s.wait_for_event("w", 30)?;
    s.closed("a")?;
    s.call("w", R::children2("/expiry", false))?;
    s.note("too late");
    s.connect_with("a", resume)?;
    s.closed("a")?;
    s.note("without a connection");
    s.connect_with("a", Connect { timeout_ms: 4_000, ..Connect::default() })?;
    s.call("a", R::create("/expiry/c", "", 1))?;
    s.drop_connection("a");
    s.call("w", R::exists("/expiry/c", true))?;
    s.wait_for_event("w", 30)?;
    s.note("pings keep a session, requests do, too");
    s.connect_with("a", Connect { timeout_ms: 4_000, ..Connect::default() })?;
    s.call("a", R::create("/expiry/d", "", 1))?;
    for round in 0..8 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        if round % 2 == 0 {
            s.drain("a")?;
        } else {
            s.call("a", R::exists("/expiry/d", false))?;
        }
    }
    s.call("w", R::exists("/expiry/d", false)).map(drop)
}

pub(super) fn who_am_i(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::who_am_i())?;
    s.calls("a", vec![R::auth("digest", "ann:pw"), R::who_am_i()])
}
