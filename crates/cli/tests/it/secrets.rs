//! S4: no secret of a login gets out of a bookie. Clients log in to the real binary, rightly and wrongly, and everything that it says is
//! searched: its log at the finest level, its admin port, metrics, and what the commands print of its settings.

#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use crate::server::{Place, bindery, free_port};
use bindery_sasl::digest_md5::{BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Client, Ha1, Nonce, Step};
use bindery_sasl::{Credentials, Secret, plain};
use bindery_wire::v3::{self, Operation, proto};
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

fn http(port: u16, method: &str, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // The password of ops, as curl -u sends it.
    let login = "Authorization: Basic b3BzOmJhc2ljLWZveC04Ng==";
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{login}\r\n\r\n"
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
    let (port, admin) = (free_port(), free_port());
    let log = File::create(path("log")).unwrap();
    let mut command =
        bindery(&["bookie", "--allow-loopback", "--memory-limit", "128MiB", "--config-env", "bk"]);
    command
        .args(["--metadata", &place.metadata(), "--data", &path("data"), "--config", &path("conf")])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", &format!("127.0.0.1:{admin}")])
        .env("RUST_LOG", "trace")
        // As the images hand it on.
        .env("BOOKIE_EXTRA_OPTS", format!("-Djava.security.auth.login.config={}", path("jaas")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let begun = Instant::now();
    let mut bookie = Running(command.spawn().unwrap());
    let is_ready =
        || http(admin, "GET", "/api/v1/bookie/is_ready").is_some_and(|answer| answer.contains(" 200 "));
    while !is_ready() {
        let said = || std::fs::read_to_string(path("log")).unwrap();
        assert!(bookie.0.try_wait().unwrap().is_none(), "{}", said());
        assert!(begun.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(50));
    }

    let mut proofs = Vec::new();
    assert!(login(port, "tiger", jaas, &mut proofs), "a user of the JAAS file");
    assert!(login(port, "lion", users, &mut proofs), "a user of the file of users");
    for (user, password) in [("tiger", wrong), ("eagle", plain_only), (as_name, wrong), (as_name, as_name)] {
        assert!(!login(port, user, password, &mut proofs), "{user}");
    }
    let mut seen = String::new();
    let paths = [
        "/metrics",
        "/heartbeat",
        "/api/v1/bookie/state",
        "/api/v1/bookie/flow",
        "/api/v1/bookie/gc",
        "/nowhere",
    ];
    for path in paths {
        for method in ["GET", "PUT"] {
            seen += &http(admin, method, path).unwrap();
        }
    }
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
        .map(|(user, password)| {
            let ha1 = Ha1::new(user, BOOKKEEPER_HOST, &Secret::new(password));
            ha1.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
        })
        .to_vec();
    let of_file = lines.split([' ', ':', '\n']).filter(|part| part.len() >= 32).map(str::to_owned);
    let secrets = PASSWORDS.map(str::to_owned).into_iter().chain(hashes).chain(of_file).chain(proofs);
    for secret in secrets {
        if let Some(at) = seen.find(&secret) {
            let from = seen[..at].rfind('\n').unwrap_or(0);
            panic!("{secret} is shown: {}", seen[from..].lines().nth(1).unwrap_or_default());
        }
    }
}
