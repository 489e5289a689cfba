//! Exchanges, certificates and reloads, without connections.

#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use super::verifier::{digest_md5_of, pbkdf2_of};
use super::*;
use bindery_io::SystemRandom;
use bindery_sasl::digest_md5::{Client, Step};
use bindery_sasl::{Credentials, Secret};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn sasl(users: &Path) -> AuthConfig {
    let provider = Provider::Sasl { jaas: None, users: Some(users.to_owned()) };
    AuthConfig { provider, requires_reader: false, refresh: AuthConfig::REFRESH_DEFAULT }
}

fn open(config: AuthConfig) -> Auth {
    Auth::open(config, crate::turns::Turns::new(1), Arc::new(SystemRandom)).unwrap()
}

fn write(file: &Path, lines: &[(&str, &str, &str)]) {
    let line = |(name, roles, secret): &(&str, &str, &str)| {
        format!("{name} {roles} {}\n", digest_md5_of(name, &Secret::new(*secret)))
    };
    write_text(file, &lines.iter().map(line).collect::<String>());
}

fn write_text(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
}

async fn digest(auth: &Auth, user: &str, password: &str) -> Progress {
    let mut client = Client::new(
        Credentials::new(user, Secret::new(password)),
        BOOKKEEPER_SERVICE,
        BOOKKEEPER_HOST,
        Nonce::draw(|| 1),
    );
    let mut exchange = None;
    let Progress::Continue(challenge) = auth.step(&mut exchange, Plugin::DigestMd5, b"", HERE).await else {
        panic!("a challenge")
    };
    let Ok(Step::Reply(reply)) = client.step(&challenge) else { panic!("a reply") };
    let progress = auth.step(&mut exchange, Plugin::DigestMd5, &reply, HERE).await;
    if let Progress::Done(token, _) = &progress {
        assert_eq!(client.step(token), Ok(Step::Done));
    }
    progress
}

async fn plain(auth: &Auth, user: &str, password: &str) -> Progress {
    let message = bindery_sasl::plain::encode(&Credentials::new(user, Secret::new(password)));
    auth.step(&mut None, Plugin::Plain, &message, HERE).await
}

fn done(progress: Progress) -> Identity {
    match progress {
        Progress::Done(_, identity) => identity,
        other => panic!("{other:?}"),
    }
}

fn failed(progress: Progress) -> Failure {
    match progress {
        Progress::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn users_log_in_with_both_mechanisms_and_get_their_rights() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    let slow = |secret| pbkdf2_of(&Secret::new(secret), 1000, &[7; 16]);
    let digest_of = |name, secret| digest_md5_of(name, &Secret::new(secret));
    write_text(
        &file,
        &format!(
            "w writer {}\nr reader {}\nslow tier,reader {}\nboth writer {} {}\n",
            digest_of("w", "pw"),
            digest_of("r", "pr"),
            slow("ps"),
            digest_of("both", "digest"),
            slow("plain"),
        ),
    );
    let auth = open(AuthConfig { requires_reader: true, ..sasl(&file) });
    let may = |identity: &Identity| {
        [Need::Write, Need::Read, Need::Tier].map(|need| identity.rights().permit(need))
    };
    for (user, password, rights) in [("w", "pw", [true, false, false]), ("r", "pr", [false, true, false])] {
        for identity in [done(digest(&auth, user, password).await), done(plain(&auth, user, password).await)]
        {
            assert_eq!((identity.name(), may(&identity)), (user, rights));
        }
    }
    assert_eq!(may(&done(plain(&auth, "slow", "ps").await)), [false, true, true]);
    failed(digest(&auth, "slow", "ps").await);
    done(digest(&auth, "both", "digest").await);
    done(plain(&auth, "both", "plain").await);
    for (user, password) in [("both", "digest"), ("w", "pr"), ("slow", "pw"), ("nobody", "pw")] {
        failed(plain(&auth, user, password).await);
    }
    failed(digest(&auth, "both", "plain").await);
}

/// Invariants 1 and 2.
#[tokio::test]
async fn failures_say_the_same_of_everybody_and_name_only_those_who_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    write(&file, &[("hd", "writer", "tiger")]);
    let auth = open(sasl(&file));
    for of in [0, 1] {
        let mut whys = Vec::new();
        for (user, password, known) in [("hd", "lion", Some("hd")), ("eagle", "tiger", None)] {
            let progress = if of == 0 {
                digest(&auth, user, password).await
            } else {
                plain(&auth, user, password).await
            };
            let Failure { why, user } = failed(progress);
            assert_eq!(user.as_deref(), known);
            assert!(!why.contains("lion") && !why.contains("eagle") && !why.contains("tiger"), "{why}");
            whys.push(why);
        }
        assert_eq!(whys[0], whys[1]);
    }
}

#[tokio::test]
async fn messages_that_are_no_exchange_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    write(&file, &[("hd", "writer", "tiger")]);
    let auth = open(sasl(&file));
    let long = vec![b','; TOKEN_BYTES_MAX + 1];
    failed(auth.step(&mut None, Plugin::DigestMd5, &long, HERE).await);
    failed(auth.step(&mut None, Plugin::Plain, &long, HERE).await);
    failed(auth.step(&mut None, Plugin::Plain, b"", HERE).await);
    let mut exchange = None;
    assert!(matches!(auth.step(&mut exchange, Plugin::DigestMd5, b"", HERE).await, Progress::Continue(_)));
    failed(auth.step(&mut exchange, Plugin::Plain, b"\0hd\0tiger", HERE).await);
    // A second first message is the response to the challenge.
    failed(auth.step(&mut exchange, Plugin::DigestMd5, b"", HERE).await);
    failed(auth.step(&mut exchange, Plugin::DigestMd5, b"", HERE).await);
    // Invariant 3.
    assert_eq!(auth.plugin("sasl", false), Some(Plugin::DigestMd5));
    assert_eq!(
        (auth.plugin("sasl-plain", false), auth.plugin("sasl-plain", true)),
        (None, Some(Plugin::Plain))
    );
    assert_eq!((auth.plugin("SASL", true), auth.plugin("", true)), (None, None));
}

/// Invariant 4.
#[tokio::test]
async fn a_reload_keeps_who_is_unchanged_and_fails_without_harm() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    write(&file, &[("a", "writer", "pa"), ("b", "writer", "pb"), ("c", "writer", "pc")]);
    let auth = open(sasl(&file));
    let mut identities = Vec::new();
    for (user, password) in [("a", "pa"), ("b", "pb"), ("c", "pc")] {
        identities.push(done(digest(&auth, user, password).await));
    }
    assert!(!auth.reload(false), "nothing has changed");
    let held = |auth: &Auth| identities.iter().map(|identity| auth.holds(identity)).collect::<Vec<_>>();
    assert_eq!(held(&auth), [true, true, true]);

    std::fs::write(&file, "b writers x\n").unwrap();
    assert!(auth.reload(false) && auth.alarms().is_empty(), "it is to be tried again");
    assert!(auth.reload(true));
    let alarm = auth.alarms().concat();
    assert!(alarm.contains("usersFile=") && alarm.contains("line 1: not a role"), "{alarm}");
    assert_eq!(held(&auth), [true, true, true]);
    done(digest(&auth, "a", "pa").await);

    write(&file, &[("a", "writer", "pa"), ("b", "reader", "pb"), ("d", "writer", "pd")]);
    assert!(!auth.reload(false) && auth.alarms().is_empty());
    assert_eq!(held(&auth), [true, false, false], "b has other roles, c is gone");
    failed(digest(&auth, "c", "pc").await);
    assert!(done(digest(&auth, "d", "pd").await).rights().permit(Need::Write));

    // Without users: nobody, but not at the moment when it is written.
    write_text(&file, "# nobody\n");
    assert!(auth.reload(false) && auth.alarms().is_empty(), "it is to be looked at again");
    done(digest(&auth, "a", "pa").await);
    assert!(!auth.reload(true));
    let alarm = auth.alarms().concat();
    assert!(alarm.contains("usersFile=") && alarm.contains("has no user"), "{alarm}");
    assert_eq!(held(&auth), [false, false, false]);
    failed(digest(&auth, "a", "pa").await);
    assert!(!auth.reload(false) && auth.alarms().len() == 1, "it stays an alarm");
    std::fs::remove_file(&file).unwrap();
    assert!(auth.reload(true) && auth.alarms().len() == 2);
    write(&file, &[("a", "writer", "pa")]);
    assert!(!auth.reload(false) && auth.alarms().is_empty());
    done(digest(&auth, "a", "pa").await);
}

/// `users` invariants 1 and 3.
#[tokio::test]
async fn a_start_wants_users_and_each_of_them_once() {
    let dir = tempfile::tempdir().unwrap();
    let (file, jaas_file) = (dir.path().join("users"), dir.path().join("jaas"));
    std::fs::write(&jaas_file, "Bookie { a.B required user_hd=\"tiger\"; };").unwrap();
    let jaas = JaasConfig {
        file: jaas_file,
        section: JaasConfig::SECTION_DEFAULT.to_owned(),
        allowed_ids: ".*".to_owned(),
    };
    let provider = Provider::Sasl { jaas: Some(jaas), users: Some(file.clone()) };
    let config = AuthConfig { provider, ..sasl(&file) };
    let refused = || {
        let opened = Auth::open(config.clone(), Turns::new(1), Arc::new(SystemRandom));
        opened.err().unwrap().to_string()
    };
    write_text(&file, "\n");
    assert!(refused().contains("has no user"), "{}", refused());
    write(&file, &[("hd", "reader", "lion")]);
    let why = refused();
    assert!(why.contains("usersFile=") && why.contains("user hd is in the JAAS file"), "{why}");

    write(&file, &[("other", "reader", "lion")]);
    let auth = open(config.clone());
    done(digest(&auth, "hd", "tiger").await);
    write(&file, &[("hd", "reader", "lion")]);
    assert!(!auth.reload(false));
    failed(digest(&auth, "hd", "tiger").await);
    done(digest(&auth, "hd", "lion").await);
}

/// A place in the line of logins is needed, and given back ([`crate::turns`]).
#[tokio::test]
async fn a_password_is_checked_at_once_or_refused_where_too_many_wait() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    write(&file, &[("hd", "writer", "tiger")]);
    let auth = open(sasl(&file));
    let mut places: Vec<_> = std::iter::from_fn(|| auth.turns.place(HERE)).collect();
    let Failure { why, user } = failed(plain(&auth, "hd", "tiger").await);
    assert!(why.contains("too many logins") && user.is_none(), "{why}");
    done(digest(&auth, "hd", "tiger").await);
    places.pop();
    done(plain(&auth, "hd", "tiger").await);
    done(plain(&auth, "hd", "tiger").await);
}

#[test]
fn the_first_role_of_a_certificate_lets_it_in() {
    let roles = vec!["writers".to_owned(), "other".to_owned()];
    let provider = Provider::Certificates { roles };
    let config = AuthConfig { provider, requires_reader: true, refresh: AuthConfig::REFRESH_DEFAULT };
    let auth = open(config);
    let certificate = |unit: &str| {
        let mut params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::OrganizationalUnitName, unit);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    };
    let of = |unit| auth.of_certificate(Some(&certificate(unit))).unwrap();
    let identity = of("0:writers").unwrap();
    let may = |identity: &Identity, need| identity.rights().permit(need);
    assert_eq!(identity.name(), "writers");
    assert!(may(&identity, Need::Write) && may(&identity, Need::Read) && !may(&identity, Need::Tier));
    assert!(may(&of("0:other,tier;1:c").unwrap(), Need::Tier));
    for unit in ["0:tier,writers", "0:readers", "writers", "0:"] {
        assert!(of(unit).is_err(), "{unit}");
    }
    assert!(auth.of_certificate(None).unwrap().is_err());
    assert_eq!(auth.plugin("sasl", true), None);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    write(&file, &[("hd", "writer", "tiger")]);
    assert!(
        open(sasl(&file)).of_certificate(Some(&certificate("0:writers"))).is_none(),
        "names say who it is"
    );
}
