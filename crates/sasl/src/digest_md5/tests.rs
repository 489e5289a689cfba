//! Exchanges of both sides, and those of the RFC.

use super::*;
use crate::Credentials;
use proptest::prelude::*;

fn nonce(text: &str) -> Nonce {
    Nonce(text.to_owned())
}

fn client(user: &str, password: &str) -> Client {
    let credentials = Credentials::new(user, Secret::new(password));
    Client::new(credentials, BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, nonce("client"))
}

fn server() -> Server {
    Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, nonce("server"))
}

fn challenge(server: &mut Server) -> Vec<u8> {
    match server.step(b"", |_| unreachable!("nobody is named yet")) {
        Ok(ServerStep::Challenge(challenge)) => challenge,
        other => panic!("{other:?}"),
    }
}

fn reply(client: &mut Client, challenge: &[u8]) -> Vec<u8> {
    match client.step(challenge) {
        Ok(Step::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

fn known(name: &'static str, password: &'static str) -> impl Fn(&str) -> Option<Ha1> {
    move |user| (user == name).then(|| Ha1::new(name, BOOKKEEPER_HOST, &Secret::new(password)))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// RFC 2831, section 4: the exchange of IMAP, and that of ACAP.
#[test]
fn proofs_of_the_rfc() {
    for (nonce, cnonce, digest_uri, client, server) in [
        (
            "OA6MG9tEQGm2hh",
            "OA6MHXh6VqTrRk",
            "imap/elwood.innosoft.com",
            "d388dad90d4bbd760a152321f2143af7",
            "ea40f60335c427b5527b84dbabcdfffd",
        ),
        (
            "OA9BSXrbuRhWay",
            "OA9BSuZWMSpW8m",
            "acap/elwood.innosoft.com",
            "6084c6db3fede7352c551284490fd0fc",
            "2f0b3d7c3c2e486600ef710726aa2eae",
        ),
    ] {
        let proofs = Proofs {
            ha1: Ha1::new("chris", "elwood.innosoft.com", &Secret::new("secret")),
            nonce: nonce.as_bytes(),
            cnonce: cnonce.as_bytes(),
            digest_uri: digest_uri.as_bytes(),
            authzid: None,
        };
        assert_eq!(text(&proofs.of(Side::Client)), client);
        assert_eq!(text(&proofs.of(Side::Server)), server);
    }
}

/// The IMAP exchange of RFC 2831, section 4, with our server.
#[test]
fn the_server_takes_the_response_of_the_rfc() {
    let host = "elwood.innosoft.com";
    let mut server = Server::new("imap", host, host, nonce("OA6MG9tEQGm2hh"));
    challenge(&mut server);
    let response = br#"charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",response=d388dad90d4bbd760a152321f2143af7,qop=auth"#;
    let step = server.step(response, |user| {
        assert_eq!(user, "chris");
        Some(Ha1::new(user, host, &Secret::new("secret")))
    });
    let reply = b"rspauth=ea40f60335c427b5527b84dbabcdfffd".to_vec();
    assert_eq!(step, Ok(ServerStep::Accepted(Accepted { user: "chris".to_owned(), reply })));
}

/// The fields, their order and their quotes are those of the JDK.
#[test]
fn messages_look_as_those_of_the_jdk() {
    let challenge = challenge(&mut server());
    assert_eq!(text(&challenge), r#"realm="bookkeeper",nonce="server",charset=utf-8,algorithm=md5-sess"#);
    let response = reply(&mut client("hd", "tiger"), &challenge);
    let (before, behind) = text(&response).split_once("response=").unwrap();
    let expected = r#"charset=utf-8,username="hd",realm="bookkeeper",nonce="server",nc=00000001,cnonce="client",digest-uri="bookkeeper/bookkeeper",maxbuf=65536,"#;
    assert_eq!(before, expected);
    assert_eq!(&behind[32..], r#",qop=auth,authzid="hd""#);
}

#[test]
fn both_sides_are_convinced_when_the_secret_is_the_same() {
    for (user, password) in
        [("hd", "tiger"), ("jürgen", "geheim ß"), ("山田", "秘密"), ("a\"b\\c", "d:e"), ("u", "")]
    {
        let (mut client, mut server) = (client(user, password), server());
        let response = reply(&mut client, &challenge(&mut server));
        let lookup = |name: &str| {
            assert_eq!(name, user);
            Some(Ha1::new(name, BOOKKEEPER_HOST, &Secret::new(password)))
        };
        let Ok(ServerStep::Accepted(accepted)) = server.step(&response, lookup) else { panic!("{user}") };
        assert_eq!(accepted.user, user);
        assert_eq!(client.step(&accepted.reply), Ok(Step::Done));
        // Invariant 3.
        assert_eq!(client.step(&accepted.reply), Err(Error::Over));
        assert_eq!(server.step(&response, lookup), Err(Error::Over));
    }
}

/// Crate invariant 3.
#[test]
fn an_unknown_user_is_as_good_as_a_wrong_password() {
    for (user, password) in [("hd", "lion"), ("nobody", "tiger"), ("nobody", "")] {
        let mut server = server();
        let response = reply(&mut client(user, password), &challenge(&mut server));
        assert_eq!(server.step(&response, known("hd", "tiger")), Err(Error::Refused), "{user}");
        assert_eq!(server.step(&response, known("hd", "tiger")), Err(Error::Over), "one guess for one nonce");
    }
}

/// Invariant 1: a response is good for one challenge. Everything is refused before the user is looked up (invariant 2).
#[test]
fn responses_that_were_changed_or_replayed_are_refused() {
    let right = reply(&mut client("hd", "tiger"), &challenge(&mut server()));
    let changed = |from: &str, to: &str| {
        let changed = text(&right).replace(from, to);
        assert_ne!(changed, text(&right), "{from}");
        let mut server = server();
        challenge(&mut server);
        server.step(changed.as_bytes(), |_| panic!("{to} was looked up")).unwrap_err()
    };
    assert_eq!(changed("nc=00000001", "nc=00000002"), Error::Unexpected("nc"));
    assert_eq!(changed("nc=00000001,", ""), Error::Missing("nc"));
    assert_eq!(changed("\"server\"", "\"another\""), Error::Unexpected("nonce"));
    assert_eq!(changed("bookkeeper/bookkeeper", "zookeeper/bookkeeper"), Error::Unexpected("digest-uri"));
    assert_eq!(changed("realm=\"bookkeeper\"", "realm=\"other\""), Error::Unexpected("realm"));
    assert_eq!(changed("realm=\"bookkeeper\",", ""), Error::Unexpected("realm"));
    assert_eq!(changed("qop=auth", "qop=auth-int"), Error::Unexpected("qop"));
    assert_eq!(changed("authzid=\"hd\"", "authzid=\"root\""), Error::Unexpected("authzid"));
    assert_eq!(changed("charset=utf-8", "charset=latin"), Error::Unexpected("charset"));
    assert_eq!(changed("username=\"hd\",", ""), Error::Missing("username"));
    assert_eq!(
        changed("username=\"hd\",", "username=\"hd\",username=\"root\","),
        Error::Repeated("username")
    );
    assert_eq!(changed("cnonce=\"client\",", ""), Error::Missing("cnonce"));
    assert_eq!(changed("response=", "response=0"), Error::Unexpected("response"));
    assert_eq!(changed("maxbuf=65536", "maxbuf=65536,maxbuf=1"), Error::Repeated("maxbuf"));
    let padding = format!("x=\"{}\",nc=", "y".repeat(RESPONSE_BYTES_MAX));
    assert!(matches!(changed("nc=", &padding), Error::TooLong { .. }));

    let mut another = Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, nonce("later"));
    challenge(&mut another);
    assert_eq!(another.step(&right, |_| panic!("a replay was looked up")), Err(Error::Unexpected("nonce")));

    let mut server = server();
    challenge(&mut server);
    let other_case = text(&right).replace("bookkeeper/bookkeeper", "BookKeeper/BookKeeper");
    assert_eq!(server.step(other_case.as_bytes(), known("hd", "tiger")), Err(Error::Refused), "it is hashed");
}

#[test]
fn a_client_believes_only_a_server_that_knows_the_secret() {
    let challenge = challenge(&mut server());
    for (answer, error) in [
        (format!("rspauth={}", "0".repeat(32)), Error::ServerRefused),
        ("rspauth=".to_owned() + "0", Error::ServerRefused),
        ("".to_owned(), Error::Missing("rspauth")),
        ("realm=\"bookkeeper\"".to_owned(), Error::Missing("rspauth")),
    ] {
        let mut client = client("hd", "tiger");
        reply(&mut client, &challenge);
        assert_eq!(client.step(answer.as_bytes()), Err(error), "{answer}");
        assert_eq!(client.step(answer.as_bytes()), Err(Error::Over));
    }
}

#[test]
fn challenges_that_cannot_be_answered_are_refused() {
    for (challenge, error) in [
        ("", Error::Missing("algorithm")),
        ("algorithm=md5-sess", Error::Missing("nonce")),
        ("nonce=a,algorithm=md5", Error::Unexpected("algorithm")),
        ("nonce=a,nonce=b,algorithm=md5-sess", Error::Repeated("nonce")),
        ("nonce=a,algorithm=md5-sess,charset=latin", Error::Unexpected("charset")),
        ("nonce=a,algorithm=md5-sess,qop=\"auth-int,auth-conf\"", Error::Unexpected("qop")),
        ("rspauth", Error::Malformed("a directive without '='")),
    ] {
        assert_eq!(client("hd", "tiger").step(challenge.as_bytes()), Err(error), "{challenge}");
    }
    for good in [
        "nonce=a,algorithm=md5-sess",
        "nonce=a,algorithm=md5-sess,qop=\"auth-conf, auth\"",
        "realm=a,realm=b,nonce=a,algorithm=md5-sess,charset=utf-8,cipher=rc4,stale=true,other=x",
    ] {
        assert!(matches!(client("hd", "tiger").step(good.as_bytes()), Ok(Step::Reply(_))), "{good}");
    }
    assert_eq!(client("山田", "a").step(b"nonce=a,algorithm=md5-sess"), Err(Error::Unencodable));
    let long = vec![b','; CHALLENGE_BYTES_MAX + 1];
    assert!(matches!(client("hd", "tiger").step(&long), Err(Error::TooLong { .. })));
    let long_name = "n".repeat(RESPONSE_BYTES_MAX);
    let step = client(&long_name, "tiger").step(b"nonce=a,algorithm=md5-sess");
    assert!(matches!(step, Err(Error::TooLong { .. })));
}

#[test]
fn a_nonce_has_all_bits_that_were_drawn() {
    let mut bits = 0;
    let drawn = Nonce::draw(|| {
        bits += 0x0101_0101_0101_0101;
        bits
    });
    assert_eq!(drawn.0, "AQEBAQEBAQECAgICAgICAgMDAwMDAwMDBAQEBAQE");
    assert_eq!(Nonce::draw(|| u64::MAX).0, "/".repeat(40));
}

/// Crate invariant 1.
#[test]
fn debug_and_errors_show_no_secret() {
    let (mut client, mut server) = (client("hd", "tiger"), server());
    let ha1 = Ha1::new("hd", BOOKKEEPER_HOST, &Secret::new("tiger"));
    let response = reply(&mut client, &challenge(&mut server));
    let refused = server.step(&response, known("hd", "lion")).unwrap_err();
    let shown = format!("{client:?} {server:?} {ha1:?} {refused} {refused:?}");
    assert!(!shown.contains("tiger") && !shown.contains(&format!("{:?}", ha1.as_bytes())), "{shown}");
}

proptest! {
    #[test]
    fn any_user_and_password_log_in(user in "\\PC{1,30}", password in "\\PC{0,30}", wrong in "\\PC{0,30}") {
        let (mut client, mut server) = (client(&user, &password), server());
        let response = reply(&mut client, &challenge(&mut server));
        let secret = |text: &str| Some(Ha1::new(&user, BOOKKEEPER_HOST, &Secret::new(text)));
        let Ok(ServerStep::Accepted(accepted)) = server.step(&response, |_| secret(&password)) else {
            return Err(TestCaseError::fail("refused"));
        };
        prop_assert_eq!(client.step(&accepted.reply), Ok(Step::Done));
        if wrong != password {
            let mut server = self::server();
            challenge(&mut server);
            prop_assert_eq!(server.step(&response, |_| secret(&wrong)), Err(Error::Refused));
        }
    }

    /// Crate invariant 2.
    #[test]
    fn no_bytes_make_a_side_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut server = server();
        challenge(&mut server);
        prop_assert!(server.step(&message, known("hd", "tiger")).is_err());
        prop_assert!(client("hd", "tiger").step(&message).is_err());
        let mut client = client("hd", "tiger");
        reply(&mut client, &challenge(&mut self::server()));
        prop_assert!(client.step(&message).is_err());
    }

    /// No single change makes a response good for another user, nonce or realm, and none makes the server panic.
    #[test]
    fn a_response_with_one_byte_changed_is_refused_or_means_the_same(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut server = server();
        let right = reply(&mut client("hd", "tiger"), &challenge(&mut server));
        let mut changed = right.clone();
        changed[at.index(right.len())] = byte;
        if let Ok(ServerStep::Accepted(accepted)) = server.step(&changed, known("hd", "tiger")) {
            prop_assert_eq!(accepted.user, "hd");
        }
    }
}
