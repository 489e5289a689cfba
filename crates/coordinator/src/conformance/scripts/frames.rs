//! Opcodes outside the protocol, broken frames, broken records.

use super::super::connection::Connect;
use super::super::jute::Writer;
use super::super::request::{Request as R, op};
use super::super::script::{Done, Script};

pub(super) fn unsupported(s: &mut Script) -> Done {
    s.connect("a")?;
    let mut record = Writer::default();
    record.string("server.1=127.0.0.1:1:2").buffer(None).buffer(None).i64(-1);
    s.call("a", R::raw(op::RECONFIG, record.0))?;
    let mut record = Writer::default();
    record.buffer(Some(b"token"));
    s.call("a", R::raw(op::SASL, record.0))?;
    s.note("the connection goes on");
    s.call("a", R::exists("/zookeeper", false)).map(drop)
}

/// An opcode that no request has, or a check outside a transaction, makes the server close the connection.
pub(super) fn opcodes(s: &mut Script) -> Done {
    for opcode in [0, 10, 23, 99, 108, 1000, -2, i32::MAX, i32::MIN] {
        s.connect("a")?;
        s.send("a", R::raw(opcode, Vec::new()));
        s.closed("a")?;
    }
    s.note("check outside a transaction");
    s.connect("a")?;
    s.send("a", R::check("/", 0));
    s.closed("a")
}

pub(super) fn frames(s: &mut Script) -> Done {
    s.note("before the session");
    let cases: [(&str, &[u8]); 5] = [
        ("length -1", &[0xff, 0xff, 0xff, 0xff]),
        ("length 2^31-1", &[0x7f, 0xff, 0xff, 0xff]),
        ("length 2^20", &[0x00, 0x10, 0x00, 0x00]),
        ("a connect request of 3 bytes", &[0, 0, 0, 3, 1, 2, 3]),
        ("a connect request of 0 bytes", &[0, 0, 0, 0]),
    ];
    for (what, bytes) in cases {
        s.open("a")?;
        s.send_bytes("a", what, bytes);
        s.closed("a")?;
    }
    s.open("a")?;
    s.send_bytes("a", "half a connect request, then the end", &[0, 0, 0, 45, 0, 0, 0, 0, 0, 0]);
    s.end_sending("a");
    s.closed("a")?;
    s.open("a")?;
    s.send_bytes("a", "half a length, then the end", &[0, 0]);
    s.end_sending("a");
    s.closed("a")?;
    s.note("a password that is longer than the frame");
    let mut frame = Connect::default().encode();
    frame[24..28].copy_from_slice(&1000_i32.to_be_bytes());
    let mut bytes = u32::try_from(frame.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend_from_slice(&frame);
    s.open("a")?;
    s.send_bytes("a", "connect with a lying password", &bytes);
    s.closed("a")?;
    s.note("in a session: the connection ends, the session stays");
    s.connect("a")?;
    s.call("a", R::create("/frames", "", 1))?;
    let resume = s.resume("a");
    let cases: [(&str, &[u8]); 6] = [
        ("length -1", &[0xff, 0xff, 0xff, 0xff]),
        ("length 2^20", &[0x00, 0x10, 0x00, 0x00]),
        ("length 2^31-1", &[0x7f, 0xff, 0xff, 0xff]),
        ("a request of 0 bytes", &[0, 0, 0, 0]),
        ("a request of 4 bytes", &[0, 0, 0, 4, 0, 0, 0, 1]),
        ("a request of 7 bytes", &[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]),
    ];
    for (what, bytes) in cases {
        s.send_bytes("a", what, bytes);
        s.closed("a")?;
        s.connect_with("a", resume.clone())?;
    }
    s.send_bytes("a", "half a request, then the end", &[0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0]);
    s.end_sending("a");
    s.closed("a")?;
    s.connect_with("a", resume)?;
    s.call("a", R::exists("/frames", false))?;
    s.note("a frame in small pieces is a frame");
    let request = R::exists("/frames", false).encode(1);
    let mut bytes = u32::try_from(request.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend_from_slice(&request);
    s.connect("b")?;
    s.send("b", R::exists("/frames", false));
    s.reply("b")?;
    let mut frame = Writer::default();
    frame.buffer(Some(&R::close().encode(9)));
    for (index, byte) in frame.0.iter().enumerate() {
        s.send_bytes("b", &format!("byte {index} of a close"), &[*byte]);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Its reply belongs to no request of the script: only the end is checked.
    let size = s.read_to_end("b")?.len();
    s.said("b", &format!("{size} bytes, then the end"));
    Ok(())
}

pub(super) fn records(s: &mut Script) -> Done {
    let cut = |opcode: i32, record: &[u8]| R::raw(opcode, record.to_vec());
    let path = |text: &str| {
        let mut out = Writer::default();
        out.string(text);
        out.0
    };
    s.connect("w")?;
    s.call("w", R::create("/records", "", 0))?;
    let cases: Vec<(&str, R)> = vec![
        ("create without anything", cut(op::CREATE, &[])),
        ("create cut after the path", cut(op::CREATE, &path("/records/x"))),
        ("delete without a version", cut(op::DELETE, &path("/records"))),
        ("exists without its flag", cut(op::EXISTS, &path("/records"))),
        ("a path longer than the record", cut(op::GET_DATA, &[0, 0, 1, 0, b'/'])),
        ("a path of negative length", cut(op::GET_DATA, &[0xff, 0xff, 0xff, 0xfe, 0])),
        ("a null path", cut(op::GET_DATA, &[0xff, 0xff, 0xff, 0xff, 0])),
        ("setData without data", cut(op::SET_DATA, &path("/records"))),
        ("getChildren without anything", cut(op::GET_CHILDREN, &[])),
        ("a multi without its end", cut(op::MULTI, &[0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff])),
        ("a multi of nothing at all", cut(op::MULTI, &[])),
        ("an acl of 2^31-1 rules", {
            let mut out = Writer::default();
            out.string("/records/y").string("").i32(i32::MAX);
            cut(op::CREATE, &out.0)
        }),
        ("setWatches of 2^31-1 paths", {
            let mut out = Writer::default();
            out.i64(0).i32(i32::MAX);
            cut(op::SET_WATCHES, &out.0)
        }),
        ("addWatch without a mode", cut(op::ADD_WATCH, &path("/records"))),
        ("sync without a path", cut(op::SYNC, &[])),
        ("bytes after the record", {
            let mut out = path("/records");
            out.extend_from_slice(&[0, 1, 2, 3]);
            cut(op::EXISTS, &out)
        }),
    ];
    for (what, request) in cases {
        s.note(what);
        s.connect("a")?;
        s.send("a", request);
        if s.reply_or_end("a")? {
            s.drain("a")?;
            s.said("a", "(the connection goes on)");
        }
    }
    s.call("w", R::children2("/records", false)).map(drop)
}
