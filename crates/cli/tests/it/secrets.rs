//! S4, S5, S16: no secret gets out of a bookie or a command. Clients log in to the real binary, rightly and wrongly, write with ledgers'
//! keys, and send tokens; commands get credentials of metadata and of object storage. Everything that is said is searched: logs at the
//! finest level, the admin port, metrics, and what the commands print of their settings.

#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use crate::server::{Place, bindery, free_port};
use bindery_sasl::digest_md5::{BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Client, Ha1, Nonce, Step};
use bindery_sasl::{Credentials, Secret, plain};
use bindery_types::MasterKey;
use bindery_wire::entry::EntryHeader;
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A bookie that takes longer has failed, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Passwords, of which none may be seen: of the JAAS file, of the file of users, wrong ones, and one in the place of a name.
const PASSWORDS: [&str; 6] =
    ["jaas-tiger-81", "users-lion-82", "plain-eagle-83", "wrong-wolf-84", "name-bear-85", "basic-fox-86"];

/// A process that ends with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The password of ops, as curl -u sends it.
const OF_OPS: &str = "Basic b3BzOmJhc2ljLWZveC04Ng==";

fn http(port: u16, method: &str, path: &str, authorization: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\
         Authorization: {authorization}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn ask(socket: &mut TcpStream, plugin: &str, token: &[u8]) -> Option<Bytes> {
    let message =
        proto::AuthMessage { auth_plugin_name: plugin.to_owned(), payload: Bytes::copy_from_slice(token) };
    let mut frame = BytesMut::new();
    let operation = Operation::Auth(message);
    v3::put_frame(&v3::Request { txn_id: 1, priority: 0, operation }.into_message(), &mut frame);
    socket.write_all(&frame).unwrap();
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut payload = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut payload).unwrap();
    v3::decode_response(payload.into()).unwrap().auth_response.map(|message| message.payload)
}

/// Logs in, and adds its proofs to `proofs`; true when the bookie accepts them.
fn login(port: u16, user: &str, password: &str, proofs: &mut Vec<String>) -> bool {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let credentials = Credentials::new(user, Secret::new(password));
    let mut sasl = Client::new(credentials.clone(), BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, Nonce::draw(|| 5));
    let challenge = ask(&mut socket, "sasl", b"").unwrap();
    let Ok(Step::Reply(response)) = sasl.step(&challenge) else { panic!("a response") };
    let text = String::from_utf8(response.clone()).unwrap();
    proofs.push(text.split_once("response=").unwrap().1[..32].to_owned());
    let is_in = ask(&mut socket, "sasl", &response).is_some();
    // Without TLS the password itself is not taken, and not repeated.
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(ask(&mut socket, "sasl-plain", &plain::encode(&credentials)), None);
    is_in
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A line of the file of users, by the command.
fn line_of(arguments: &[&str], password: &str) -> String {
    let mut command = bindery(&[&["user", "hash"], arguments].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A bookie that serves, its client port and its admin port. Its log goes to `log`.
fn serving(mut command: Command, log: &Path) -> (Running, u16, u16) {
    let (port, admin) = (free_port(), free_port());
    command
        .args(["--allow-loopback", "--memory-limit", "128MiB"])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", &format!("127.0.0.1:{admin}")])
        .env("RUST_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log).unwrap());
    let begun = Instant::now();
    let mut bookie = Running(command.spawn().unwrap());
    let is_ready = || {
        http(admin, "GET", "/api/v1/bookie/is_ready", OF_OPS).is_some_and(|answer| answer.contains(" 200 "))
    };
    while !is_ready() {
        let said = || std::fs::read_to_string(log).unwrap();
        assert!(bookie.0.try_wait().unwrap().is_none(), "{}", said());
        assert!(begun.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(50));
    }
    (bookie, port, admin)
}

/// What the admin port says to all kinds of requests.
fn of_admin(admin: u16, authorization: &str) -> String {
    let paths = [
        "/metrics",
        "/heartbeat",
        "/api/v1/bookie/state",
        "/api/v1/bookie/flow",
        "/api/v1/bookie/gc",
        "/api/v1/config/server_config",
        "/nowhere",
    ];
    let answers = paths
        .iter()
        .flat_map(|path| ["GET", "PUT"].map(|method| http(admin, method, path, authorization).unwrap()));
    answers.collect()
}

/// Panics with the line that shows one of the secrets.
fn assert_hidden(seen: &str, secrets: impl IntoIterator<Item = String>) {
    for secret in secrets {
        if let Some(at) = seen.find(&secret) {
            let from = seen[..at].rfind('\n').map_or(0, |end| end + 1);
            panic!("{secret} is shown: {}", seen[from..].lines().next().unwrap_or_default());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn no_secret_of_a_login_gets_out_of_a_bookie() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [jaas, users, plain_only, wrong, as_name, basic] = PASSWORDS;
    let lines = line_of(&["lion"], users)
        + &line_of(&["eagle", "--roles", "writer", "--plain"], plain_only)
        + &line_of(&["ops", "--roles", "admin"], basic);
    write(Path::new(&path("users")), &lines, 0o600);
    let jaas_text = format!("Bookie {{ a.DigestLoginModule required user_tiger=\"{jaas}\"; }};\n");
    write(Path::new(&path("jaas")), &jaas_text, 0o600);
    let conf = format!(
        "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory\n\
         saslJaasClientAllowedIds=.*\nusersFile={}\n",
        path("users")
    );
    write(Path::new(&path("conf")), &conf, 0o644);

    let place = Place::new(&dir.path().join("standalone"), 1);
    let _metadata = place.start();
    let mut command = bindery(&["bookie", "--config-env", "bk"]);
    command
        .args(["--metadata", &place.metadata(), "--data", &path("data"), "--config", &path("conf")])
        // As the images hand it on.
        .env("BOOKIE_EXTRA_OPTS", format!("-Djava.security.auth.login.config={}", path("jaas")));
    let (_bookie, port, admin) = serving(command, Path::new(&path("log")));

    let mut proofs = Vec::new();
    assert!(login(port, "tiger", jaas, &mut proofs), "a user of the JAAS file");
    assert!(login(port, "lion", users, &mut proofs), "a user of the file of users");
    for (user, password) in [("tiger", wrong), ("eagle", plain_only), (as_name, wrong), (as_name, as_name)] {
        assert!(!login(port, user, password, &mut proofs), "{user}");
    }
    let mut seen = of_admin(admin, OF_OPS);
    assert!(seen.contains("bindery_auth_failed"), "{seen}");
    let (metadata, data, conf_file, jaas_file) =
        (place.metadata(), path("shown"), path("conf"), path("jaas"));
    let settings = ["--metadata", &metadata, "--data", &data, "--jaas-file", &jaas_file];
    for shown in [
        &["config", "show", "--all", "--config", &conf_file][..],
        &["config", "show", "--all", "--json", "--config", &conf_file],
        &["config", "check", &conf_file],
    ] {
        seen += &printed(bindery(shown).args(settings));
    }
    seen += &printed(&mut bindery(&["flow", "--json", "--admin", &format!("http://127.0.0.1:{admin}")]));
    assert!(seen.contains("usersFile") && seen.contains(&jaas_file), "{seen}");
    // Files with mistakes, which errors name.
    for (flag, name, text) in [
        ("--users-file", "users", format!("lion writer {users}\n")),
        ("--jaas-file", "jaas", format!("Bookie {{ a.A required user_tiger={jaas}={jaas}; }};\n")),
    ] {
        let broken = path(&format!("broken-{name}"));
        write(Path::new(&broken), &text, 0o600);
        let mut command = bindery(&["bookie", "--allow-loopback", "--config", &path("conf"), flag, &broken]);
        command.args(["--metadata", &place.metadata(), "--data", &path("other"), "--listen", "127.0.0.1:0"]);
        let said = printed(command.env("RUST_LOG", "trace"));
        assert!(said.contains(&broken) && said.contains("line 1"), "{said}");
        seen += &said;
    }
    let log = std::fs::read_to_string(path("log")).unwrap();
    assert!(log.contains("bindery::audit") && log.contains("user=\"tiger\""), "the log says who failed");
    seen += &log;

    let hashes: Vec<String> = [("tiger", jaas), ("lion", users), ("ops", basic)]
        .map(|(user, password)| hex(Ha1::new(user, BOOKKEEPER_HOST, &Secret::new(password)).as_bytes()))
        .to_vec();
    let of_file = lines.split([' ', ':', '\n']).filter(|part| part.len() >= 32).map(str::to_owned);
    let secrets = PASSWORDS.map(str::to_owned).into_iter().chain(hashes).chain(of_file).chain(proofs);
    assert_hidden(&seen, secrets);
}

/// A request of v2 or v3 and the payload of its answer.
fn exchange(socket: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    socket.write_all(request).unwrap();
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut payload = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut payload).unwrap();
    payload
}

/// The keys of ledgers and their passwords, tokens of the admin port, passwords of stores, and credentials that commands are given.
#[test]
fn no_secret_of_anything_else_gets_out() {
    const KEYS: [&[u8; 20]; 2] = [b"key-otter-0123456789", b"key-wrong-0123456789"];
    const TOKENS: [&str; 2] = ["token-hare-87", "token-wrong-88"];
    const LEDGER: &str = "ledger-shrew-89";
    const ZOOKEEPER: &str = "zookeeper-seal-90";
    const STORE: [&str; 2] = ["ASIAHERON91", "storage-heron-92"];
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let of_store = "words of a store";
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata/key.p12");
    write(Path::new(&path("store-password")), of_store, 0o600);
    write(Path::new(&path("tokens")), &format!("{}\n", TOKENS[0]), 0o600);
    let tls = format!(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PKCS12\ntlsKeyStore={}\n\
         tlsKeyStorePasswordPath={}\n",
        store.display(),
        path("store-password")
    );
    write(Path::new(&path("conf")), &tls, 0o644);
    let place = Place::new(&dir.path().join("standalone"), 1);
    let _metadata = place.start();
    let mut command = bindery(&["bookie", "--config", &path("conf"), "--admin-tokens", &path("tokens")]);
    command.args(["--metadata", &place.metadata(), "--data", &path("data")]);
    let (_bookie, port, admin) = serving(command, Path::new(&path("log")));

    // Over both protocols; with the ledger's key, with another, and with one that is too short.
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for (key, code) in KEYS.iter().zip([ErrorCode::Ok, ErrorCode::Unauthorized]) {
        let mut body = [0; 50];
        EntryHeader { ledger_id: 9, entry_id: 0, last_add_confirmed: -1 }
            .put_with_length(0, &mut &mut body[..]);
        let mut frame = BytesMut::new();
        let add = v2::Add::new(v2::Flags::NONE, MasterKey::new(**key), &body).unwrap();
        v2::Request::Add(add).encode(&mut frame);
        let answer = exchange(&mut socket, &frame);
        let v2::Response::Add { code: answered, .. } = v2::Response::decode(&answer).unwrap() else {
            panic!()
        };
        assert_eq!(answered, code);
        for length in [20, 7] {
            let flag = Some(proto::read_request::Flag::FenceLedger as i32);
            let master_key = Some(Bytes::copy_from_slice(&key[..length]));
            let (ledger_id, entry_id) = (10, -1);
            let read = proto::ReadRequest { flag, ledger_id, entry_id, master_key, ..Default::default() };
            let mut frame = BytesMut::new();
            let request = v3::Request { txn_id: 1, priority: 0, operation: Operation::Read(read) };
            v3::put_frame(&request.into_message(), &mut frame);
            exchange(&mut socket, &frame);
        }
    }
    let mut seen = String::new();
    for token in TOKENS {
        seen += &of_admin(admin, &format!("Bearer {token}"));
    }
    let (metadata, conf) = (place.metadata(), path("conf"));
    for shown in [&["config", "show", "--all", "--config", &conf][..], &["config", "check", &conf]] {
        seen += &printed(bindery(shown).args(["--metadata", &metadata, "--admin-tokens", &path("tokens")]));
    }

    // A ledger with a password, right and wrong, and what its metadata is shown as.
    let ledger = |args: &[&str], password: &str| {
        let mut command = bindery(&[&["ledger"], args].concat());
        command.env("BINDERY_METADATA", &metadata).env("BINDERY_PASSWORD", password).env("RUST_LOG", "trace");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let created = ledger(&["create", "--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1"], LEDGER);
    assert!(created.status.success(), "{created:?}");
    let id = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    seen += &String::from_utf8(created.stderr).unwrap();
    for (args, password) in [
        (&["append", &id, &conf][..], LEDGER),
        (&["append", &id, &conf], "ledger-wrong-93"),
        (&["show", &id], LEDGER),
        (&["show", &id, "--json"], LEDGER),
        (&["close", &id], LEDGER),
        (&["read", &id], "ledger-wrong-93"),
    ] {
        let output = ledger(args, password);
        seen += &String::from_utf8_lossy(&[output.stdout, output.stderr].concat());
    }

    // Credentials that are refused, and servers that are not there.
    write(Path::new(&path("zookeeper-password")), &format!("{ZOOKEEPER}\n"), 0o600);
    let login = format!("zkSaslUser=walrus\nzkSaslPasswordPath={}\n", path("zookeeper-password"));
    write(Path::new(&path("login")), &login, 0o644);
    let mut command = bindery(&["ledger", "list", "--metadata-config", &path("login")]);
    let said = printed(command.env("BINDERY_METADATA", &metadata).env("RUST_LOG", "trace"));
    assert!(!said.is_empty());
    seen += &said;
    let mut command = bindery(&["tier", "check", "s3://bucket"]);
    command
        .env("AWS_ACCESS_KEY_ID", STORE[0])
        .env("AWS_SECRET_ACCESS_KEY", STORE[1])
        .env("RUST_LOG", "trace");
    command
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "x");
    let said = printed(&mut command);
    assert!(said.contains("refused"), "{said}");
    seen += &said;
    let log = std::fs::read_to_string(path("log")).unwrap();
    assert!(log.contains("bindery::audit"), "the log says what was changed");
    seen += &log;

    let keys = KEYS.iter().flat_map(|key| {
        let text = String::from_utf8(key.to_vec()).unwrap();
        let list = format!("{key:?}");
        [text, hex(*key), hex(*key).to_uppercase(), list[1..list.len() - 1].to_owned(), hex(&key[..7])]
    });
    let others = [TOKENS[0], TOKENS[1], of_store, LEDGER, "ledger-wrong-93", ZOOKEEPER, STORE[1]];
    assert_hidden(&seen, keys.chain(others.map(str::to_owned)));
}
