//! Access rules.

use super::super::request::{Acl, Request as R, op, open_acl};
use super::super::script::{Done, Script};

/// The user and the base64 of the SHA-1 of `bob:secret`.
const BOB: &str = "bob:fyVmFCwVbTJYrznoSu1koqYEYF0=";

fn world(permissions: i32) -> Vec<Acl> {
    vec![Acl::new(permissions, "world", "anyone")]
}

pub(super) fn acl(s: &mut Script) -> Done {
    s.connect("a")?;
    s.calls(
        "a",
        vec![
            R::create("/acl", "", 0),
            R::get_acl("/acl"),
            R::set_acl("/acl", open_acl(), 0),
            R::set_acl("/acl", open_acl(), 0),
            R::set_acl("/acl", open_acl(), -1),
            R::set_acl("/acl", open_acl(), 7),
            R::get_acl("/acl"),
            R::exists("/acl", false),
        ],
    )?;
    s.note("each permission alone: read 1, write 2, create 4, delete 8, admin 16");
    for permissions in [1, 2, 4, 8, 16] {
        let path = format!("/acl/p{permissions}");
        s.call("a", R::create_with_acl(&path, world(permissions)))?;
        let child = format!("{path}/c");
        s.calls(
            "a",
            vec![
                R::exists(&path, false),
                R::get(&path, false),
                R::children(&path, false),
                R::children2(&path, false),
                R::all_children_number(&path),
                R::set(&path, "x", -1),
                R::create(&child, "", 0),
                R::delete(&child, -1),
                R::get_acl(&path),
                R::sync(&path),
                R::multi(vec![R::check(&path, 0)]),
                R::multi_read(vec![R::get(&path, false), R::children(&path, false)]),
                R::set_acl(&path, world(permissions), -1),
            ],
        )?;
    }
    s.note("the permission to delete a node is its parent's");
    s.calls("a", vec![R::delete("/acl/p1", -1), R::delete("/acl/p16", -1), R::children("/acl", false)])?;
    s.note("a watch on a node that may not be read: refused, and exists needs no permission");
    s.calls("a", vec![R::get("/acl/p2", true), R::exists("/acl/p2", true), R::set("/acl/p2", "y", -1)])
}

pub(super) fn digest(s: &mut Script) -> Done {
    s.connect("a")?;
    s.connect("b")?;
    s.calls("a", vec![R::auth("digest", "bob:secret"), R::create("/digest", "", 0)])?;
    s.note("digest: the hash is stored and shown; auth: whoever creates it");
    s.calls(
        "a",
        vec![
            R::create_with_acl("/digest/auth", vec![Acl::new(31, "auth", "")]),
            R::get_acl("/digest/auth"),
            R::create_with_acl(
                "/digest/auth2",
                vec![Acl::new(1, "auth", "anything"), Acl::new(2, "world", "anyone")],
            ),
            R::get_acl("/digest/auth2"),
            R::create_with_acl(
                "/digest/bob",
                vec![Acl::new(31, "digest", BOB), Acl::new(1, "world", "anyone")],
            ),
            R::get_acl("/digest/bob"),
            R::set("/digest/auth", "mine", -1),
            R::create("/digest/auth/child", "", 0),
        ],
    )?;
    s.note("without the password");
    s.calls(
        "b",
        vec![
            R::get("/digest/auth", false),
            R::set("/digest/auth", "b", -1),
            R::get_acl("/digest/auth"),
            R::get_acl("/digest/bob"),
            R::get("/digest/bob", false),
            R::set("/digest/bob", "b", -1),
            R::delete("/digest/auth/child", -1),
            R::children("/digest/auth", false),
            R::exists("/digest/auth", false),
            R::multi(vec![R::create("/digest/n", "", 0), R::set("/digest/auth", "b", -1)]),
            R::exists("/digest/n", false),
            R::multi_read(vec![R::get("/digest/auth", false), R::get("/digest/bob", false)]),
        ],
    )?;
    s.note("with a wrong one, then with the right one besides");
    s.calls("b", vec![R::auth("digest", "bob:wrong"), R::get("/digest/auth", false)])?;
    s.calls(
        "b",
        vec![R::auth("digest", "bob:secret"), R::get("/digest/auth", false), R::get_acl("/digest/auth")],
    )?;
    s.call("b", R::create_with_acl("/digest/both", vec![Acl::new(31, "auth", "")]))?;
    s.calls("b", vec![R::get_acl("/digest/both"), R::delete("/digest/auth/child", -1)])?;
    s.note("a connection that takes the session up starts without");
    let resume = s.resume("b");
    s.drop_connection("b");
    s.connect_with("b", resume)?;
    s.call("b", R::get("/digest/auth", false)).map(drop)
}

pub(super) fn invalid(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/invalid", "", 0))?;
    let lists: [Option<Vec<Acl>>; 12] = [
        None,
        Some(vec![]),
        Some(vec![Acl::new(31, "world", "somebody")]),
        Some(vec![Acl::new(31, "world", "")]),
        Some(vec![Acl::new(31, "unknown", "x")]),
        Some(vec![Acl::new(31, "", "")]),
        Some(vec![Acl::new(31, "auth", "")]),
        Some(vec![Acl::new(31, "digest", "no-colon")]),
        Some(vec![Acl::new(31, "digest", "a:b:c")]),
        Some(vec![Acl::new(0, "world", "anyone")]),
        Some(vec![Acl::new(32, "world", "anyone")]),
        Some(vec![Acl::new(31, "world", "anyone"), Acl::new(1, "unknown", "x")]),
    ];
    for (index, acl) in lists.into_iter().enumerate() {
        let path = format!("/invalid/n{index}");
        let (opcode, data) = (op::CREATE, Some(Vec::new()));
        s.call("a", R::Create { opcode, path, data, acl: acl.clone(), flags: 0, ttl: 0 })?;
        let path = format!("/invalid/s{index}");
        s.call("a", R::create(&path, "", 0))?;
        s.call("a", R::SetAcl { path: path.clone(), acl, version: -1 })?;
        s.call("a", R::get_acl(&path))?;
    }
    s.note("what the ids of digests and addresses may be");
    for (scheme, id) in [
        ("ip", "127.0.0.1"),
        ("ip", "127.0.0.0/8"),
        ("ip", "10.0.0.1"),
        ("ip", "10.0.0.0/33"),
        ("ip", "10.0.0"),
        ("ip", "name"),
        ("ip", ""),
        ("digest", "user:hash"),
        ("digest", ":"),
        ("digest", ""),
        ("x509", "cn=x"),
        ("sasl", "x"),
        ("super", ""),
        ("WORLD", "anyone"),
    ] {
        s.call("a", R::create_with_acl("/invalid/x", vec![Acl::new(31, scheme, id)]))?;
        s.calls("a", vec![R::get_acl("/invalid/x"), R::delete("/invalid/x", -1)])?;
    }
    s.note("the same rule twice");
    s.call("a", R::create_with_acl("/invalid/twice", [open_acl(), open_acl()].concat()))?;
    s.calls("a", vec![R::get_acl("/invalid/twice"), R::children2("/invalid", false)])
}

pub(super) fn kinds(s: &mut Script) -> Done {
    s.connect("a")?;
    s.call("a", R::create("/kinds", "", 0))?;
    s.note("ip: this connection comes from 127.0.0.1");
    for (name, id) in
        [("here", "127.0.0.1"), ("net", "127.0.0.0/8"), ("bits", "127.128.0.0/8"), ("far", "10.0.0.0/8")]
    {
        let path = format!("/kinds/{name}");
        s.call("a", R::create_with_acl(&path, vec![Acl::new(31, "ip", id)]))?;
        s.calls("a", vec![R::get(&path, false), R::set(&path, "x", -1), R::get_acl(&path)])?;
    }
    s.note("several rules: what any of them allows");
    s.call(
        "a",
        R::create_with_acl(
            "/kinds/two",
            vec![Acl::new(1, "world", "anyone"), Acl::new(2, "ip", "127.0.0.1")],
        ),
    )?;
    s.calls(
        "a",
        vec![R::get("/kinds/two", false), R::set("/kinds/two", "x", -1), R::create("/kinds/two/c", "", 0)],
    )?;
    s.note("rules are not inherited");
    s.call("a", R::create_with_acl("/kinds/parent", world(4 | 1)))?;
    s.calls(
        "a",
        vec![
            R::create("/kinds/parent/c", "", 0),
            R::get_acl("/kinds/parent/c"),
            R::set("/kinds/parent/c", "", -1),
        ],
    )?;
    s.note("a change of the rules moves aversion only");
    s.calls(
        "a",
        vec![
            R::set_acl("/kinds/two", world(17), 0),
            R::exists("/kinds/two", false),
            R::set("/kinds/two", "", -1),
        ],
    )
}

pub(super) fn auth(s: &mut Script) -> Done {
    s.connect("a")?;
    s.note("credentials add up");
    s.calls(
        "a",
        vec![R::auth("digest", "a:1"), R::auth("digest", "b:2"), R::auth("digest", "a:1"), R::who_am_i()],
    )?;
    for (scheme, credentials) in [("ip", "10.0.0.1"), ("digest", "nocolon"), ("digest", "")] {
        s.note(&format!("{scheme} {credentials:?}"));
        s.connect("a")?;
        s.send("a", R::auth(scheme, credentials));
        if s.reply_or_end("a")? {
            s.call("a", R::who_am_i())?;
        }
    }
    s.note("an unknown scheme, and one that nobody can prove, end the connection after the answer");
    for scheme in ["kerberos", "world", "auth", ""] {
        s.connect("b")?;
        s.call("b", R::auth(scheme, "anyone"))?;
        s.closed("b")?;
    }
    Ok(())
}
