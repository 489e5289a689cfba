//! As much of HTTP as it takes to ask an admin port: one request, and one answer that ends with the connection. The files of TLS for
//! `https://` and the token are given by environment variables.

use crate::exit::{self, Failure};
use crate::output;
use crate::printable::within_line;
use bindery_metadata::codec::service_info::{Endpoint, PROTOCOL_BOOKIE_RPC, PROTOCOL_HTTP};
use bindery_tls::client::ClientFiles;
use bindery_tls::store::StoreFile;
use bindery_types::{BookieId, bare_host, host_and_port};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A process that takes longer counts as one that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// No answer is larger; bytes beyond it are not read.
const ANSWER_SIZE_BYTES_MAX: u64 = 16 << 20;

/// The environment variable with the token for changes from another machine.
const TOKEN_VARIABLE: &str = "BINDERY_ADMIN_TOKEN";

/// The variable that names a PEM file with the authorities of admin ports with TLS.
const AUTHORITIES_VARIABLE: &str = "BINDERY_ADMIN_CA";
/// The variable that names a PEM file with a key and its certificates, for admin ports that ask for them.
const CERTIFICATE_VARIABLE: &str = "BINDERY_ADMIN_CERT";

/// Where an admin port is.
#[derive(Debug, Clone)]
pub struct Address {
    host_and_port: String,
    tls: Option<Arc<ClientConfig>>,
    /// Found by its registration, so it is sent no token.
    is_registered: bool,
}

impl Address {
    /// From `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT`. Reads the files of TLS for the second.
    pub fn parse(text: &str) -> Result<Address, Failure> {
        let wrong = |why: &str| {
            Failure::usage(format!(
                "--admin {text}: {why}; write http://HOST:PORT, for example http://127.0.0.1:8080"
            ))
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !matches!(scheme, "http" | "https") {
            return Err(wrong("admin ports speak HTTP"));
        }
        let host_and_port = rest.strip_suffix('/').unwrap_or(rest);
        if host_and_port.contains('/') {
            return Err(wrong("give the address alone, without a path"));
        }
        match host_and_port.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                let tls = if scheme == "https" { Some(tls()?) } else { None };
                Ok(Address { host_and_port: host_and_port.to_owned(), tls, is_registered: false })
            }
            _ => Err(wrong("it names no port")),
        }
    }
}

impl Address {
    /// The admin port that a bookie registered, or why it is not asked. It is asked over plain HTTP, and only at the host that clients of
    /// the bookie connect to: whoever may write metadata gets no requests sent to the rest of the operator's network. What is sent there
    /// has no token, takes a bounded time and has a bounded answer; a redirect is not followed ([`ask`]).
    pub fn registered(bookie: &BookieId, endpoints: &[Endpoint]) -> Result<Address, String> {
        let of = |protocol| endpoints.iter().find(|endpoint| endpoint.protocol == protocol);
        let admin = of(PROTOCOL_HTTP).ok_or("it has no admin port")?;
        // As clients find it: by the registration, or by an id that is an address.
        let of_id = || bookie.as_str().rsplit_once(':').map(|(host, _)| host);
        let host = of(PROTOCOL_BOOKIE_RPC).map(|endpoint| &endpoint.host[..]).or_else(of_id);
        // Nothing in the name of the host is a scheme or a path.
        match host.is_some_and(|host| bare_host(host).eq_ignore_ascii_case(bare_host(&admin.host))) {
            true => Ok(Address {
                host_and_port: host_and_port(&admin.host, admin.port),
                tls: None,
                is_registered: true,
            }),
            false => Err(format!(
                "its admin port is registered at another host than its own, {}, which is not asked",
                host_and_port(&admin.host, admin.port)
            )),
        }
    }

    /// The same port, asked over TLS.
    #[must_use]
    pub fn over(self, tls: Option<Arc<ClientConfig>>) -> Address {
        Address { tls, ..self }
    }

    /// Whether others on the network can read what is sent: there is neither TLS nor a loopback address.
    fn is_open_to_listeners(&self) -> bool {
        let host = self.host_and_port.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        self.tls.is_none() && !is_loopback
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host_and_port)
    }
}

/// The words for errors about one part of an admin port.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// The command that asks.
    pub command: &'static str,
    /// The process that answers: bookie, tierer.
    pub whose: &'static str,
    /// The advice when no process listens.
    pub nobody: &'static str,
    /// The part that the address lacks, and the remedy.
    pub missing: &'static str,
    /// The part that is not ready, and the advice.
    pub starting: &'static str,
}

/// Sends a request without a body and returns the body of the answer. Any `method` but GET carries the token that the environment gives.
/// Fails when the port cannot be reached or does not answer within [`PATIENCE`], and for every status other than 200.
pub async fn ask(address: &Address, method: &str, path: &str, words: &Words) -> Result<Vec<u8>, Failure> {
    ask_with(address, method, path, "", words).await
}

/// As [`ask`], with a body.
pub async fn ask_with(
    address: &Address,
    method: &str,
    path: &str,
    body: &str,
    words: &Words,
) -> Result<Vec<u8>, Failure> {
    let answer = answer_of(address, method, path, body, words).await?;
    body_of(address, answer, words)
}

/// The whole answer to a request, its head included.
async fn answer_of(
    address: &Address,
    method: &str,
    path: &str,
    body: &str,
    words: &Words,
) -> Result<Vec<u8>, Failure> {
    let authorization = match method {
        // No GET needs a token, and over plain HTTP it is sent as seldom as possible.
        "GET" => String::new(),
        _ if address.is_registered => String::new(),
        _ => authorization(std::env::var_os(TOKEN_VARIABLE))?,
    };
    if !authorization.is_empty() && address.is_open_to_listeners() {
        output::say(format!(
            "bindery: the token in {TOKEN_VARIABLE} is sent to {address} without TLS, where others on the way can read it: give the \
             admin port TLS, and write https://"
        ));
    }
    let answer =
        tokio::time::timeout(PATIENCE, exchange(address, method, path, (&authorization, body))).await;
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(unreachable(address, &error, words)),
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            Err(Failure::with_code(
                exit::UNREACHABLE,
                format!("{address} does not answer within {seconds} s: look at the log of that process"),
            ))
        }
    }
}

/// As [`ask_json`] with GET; `None` when the port has no such path.
pub async fn find_json<T: DeserializeOwned>(
    address: &Address,
    path: &str,
    words: &Words,
) -> Result<Option<T>, Failure> {
    let answer = answer_of(address, "GET", path, "", words).await?;
    let first = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    if first.starts_with(b"HTTP/1.") && first.split(|byte| *byte == b' ').nth(1) == Some(b"404") {
        return Ok(None);
    }
    shown(address, &body_of(address, answer, words)?, words).map(Some)
}

/// As [`ask`], for an answer in JSON that is shown to people: its strings are [printable](crate::printable).
pub async fn ask_json<T: DeserializeOwned>(
    address: &Address,
    method: &str,
    path: &str,
    words: &Words,
) -> Result<T, Failure> {
    shown(address, &ask(address, method, path, words).await?, words)
}

fn shown<T: DeserializeOwned>(address: &Address, body: &[u8], words: &Words) -> Result<T, Failure> {
    let shown = serde_json::from_slice(body).map(printable).and_then(serde_json::from_value);
    shown.map_err(|error| {
        Failure::new(format!(
            "what {address} answers is not understood ({error}): use the bindery of the same version as the {}'s",
            words.whose
        ))
    })
}

fn printable(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(within_line(&text).into_owned()),
        Value::Array(values) => values.into_iter().map(printable).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (within_line(&name).into_owned(), printable(value)))
            .collect(),
        other => other,
    }
}

/// TLS for ports that are found by their registrations, if the environment names an authority of admin ports.
pub fn tls_if_named() -> Result<Option<Arc<ClientConfig>>, Failure> {
    let is_named = std::env::var_os(AUTHORITIES_VARIABLE).is_some_and(|path| !path.is_empty());
    is_named.then(tls).transpose()
}

/// TLS with the files that the environment names.
fn tls() -> Result<Arc<ClientConfig>, Failure> {
    let file = |setting: &'static str| {
        let path = std::env::var_os(setting).filter(|path| !path.is_empty())?;
        Some(StoreFile::new(setting, path))
    };
    let authorities = file(AUTHORITIES_VARIABLE).ok_or_else(|| {
        Failure::usage(format!(
            "name a PEM file with the authority of the admin port in {AUTHORITIES_VARIABLE} (and one with your key and certificate in \
             {CERTIFICATE_VARIABLE}, if it asks for them)"
        ))
    })?;
    let mut files = ClientFiles::new(authorities);
    files.identity = file(CERTIFICATE_VARIABLE);
    let config = files.read().and_then(|contents| files.configure(&contents));
    config.map(Arc::new).map_err(Failure::usage)
}

/// `more`: a line of the head, or nothing, and the body.
async fn exchange(address: &Address, method: &str, path: &str, more: (&str, &str)) -> io::Result<Vec<u8>> {
    let socket = TcpStream::connect(&address.host_and_port).await?;
    let Some(tls) = &address.tls else { return talk(socket, address, method, path, more).await };
    let host = address.host_and_port.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls.clone()).connect(name, socket).await?;
    talk(stream, address, method, path, more).await
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: &Address,
    method: &str,
    path: &str,
    (authorization, body): (&str, &str),
) -> io::Result<Vec<u8>> {
    // Version 1.0: the answer comes in one piece and ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
        address.host_and_port,
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    (&mut stream).take(ANSWER_SIZE_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The header line with the token; empty without one. A token with characters that a header cannot have is an error of usage.
fn authorization(token: Option<OsString>) -> Result<String, Failure> {
    let Some(token) = token.filter(|token| !token.is_empty()) else { return Ok(String::new()) };
    match token.into_string() {
        Ok(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(format!("Authorization: Bearer {token}\r\n"))
        }
        // A line break in it would begin a header of its own.
        _ => Err(Failure::usage(format!(
            "the token in {TOKEN_VARIABLE} has other characters than visible ones of ASCII: give one of the file that the process \
             was given with --admin-tokens"
        ))),
    }
}

fn unreachable(address: &Address, error: &io::Error, words: &Words) -> Failure {
    let tls_error = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let advice = match error.kind() {
        _ if matches!(tls_error, Some(rustls::Error::InvalidMessage(_))) => {
            "that port does not speak TLS: write http:// if it is an admin port".to_owned()
        }
        _ if tls_error.is_some() => format!(
            "with https:// the port must speak TLS with a certificate for that name, of an authority in {AUTHORITIES_VARIABLE}; if it \
             wants yours, name it in {CERTIFICATE_VARIABLE}"
        ),
        ErrorKind::ConnectionRefused => words.nobody.to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => NO_ADMIN_PORT.to_owned(),
        _ => format!("name the admin port with {} --admin http://HOST:PORT", words.command),
    };
    Failure::with_code(exit::UNREACHABLE, format!("cannot ask {address} ({error}): {advice}"))
}

const NO_ADMIN_PORT: &str = "it is no admin port. If it is the port that clients connect to, look for --admin or \
                             httpServerPort of that bookie; if it is one with TLS, write https://";

fn body_of(address: &Address, answer: Vec<u8>, words: &Words) -> Result<Vec<u8>, Failure> {
    let no_http = || Failure::new(format!("{address} does not speak HTTP: {NO_ADMIN_PORT}"));
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(no_http)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| no_http())?;
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.")?.split(' ').nth(1));
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let body = answer[end + 4..].to_vec();
    let said_up_to =
        |most: usize| within_line(String::from_utf8_lossy(&body[..body.len().min(most)]).trim()).into_owned();
    let said = || said_up_to(200);
    match status {
        Some("200") if length.is_some_and(|length| length != body.len()) => {
            Err(Failure::new(format!("the answer of {address} is cut off: try again")))
        }
        Some("200") => Ok(body),
        Some("401" | "403") if address.is_registered => Err(Failure::new(format!(
            "{address} refuses: {}. {TOKEN_VARIABLE} is sent only to a port that --admin {address} names",
            said_up_to(1000)
        ))),
        Some("401" | "403") => Err(Failure::new(format!("{address} refuses: {}", said_up_to(1000)))),
        Some("404") => Err(Failure::new(format!("{address} {}", words.missing))),
        Some("503") => {
            let why = said();
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            Err(Failure::with_code(exit::UNREACHABLE, format!("{address} {}{why}", words.starting)))
        }
        Some(other) => Err(Failure::new(format!("{address} answers {}: {}", within_line(other), said()))),
        None => Err(no_http()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_scheme() {
        for text in ["http://127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080/"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), "http://127.0.0.1:8080");
        }
        assert_eq!(Address::parse("[::1]:80").unwrap().to_string(), "http://[::1]:80");
        let wrong = [
            ("ftp://h:1", "speak HTTP"),
            ("h", "no port"),
            ("http://h:x", "no port"),
            ("http://h:1/metrics", "without a path"),
            (":80", "no port"),
        ];
        for (text, why) in wrong {
            let failure = Address::parse(text).unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.to_string().contains(why), "{text}: {failure}");
        }
    }

    #[test]
    fn a_registration_names_no_other_host_for_http() {
        use bindery_metadata::codec::service_info::BookieServiceInfo;
        let bookie = BookieId::new("b1.example:3181").unwrap();
        let asked = |own: &str, admin: &str| {
            let info = BookieServiceInfo::of_bookie((own, 3181), Some((admin, 8080)));
            Address::registered(&bookie, &info.endpoints).map(|address| address.to_string())
        };
        assert_eq!(asked("10.0.0.1", "10.0.0.1").as_deref(), Ok("http://10.0.0.1:8080"));
        assert_eq!(asked("B1.example", "b1.EXAMPLE").as_deref(), Ok("http://b1.EXAMPLE:8080"));
        assert_eq!(asked("[::1]", "::1").as_deref(), Ok("http://[::1]:8080"));
        for other in ["169.254.169.254", "127.0.0.1", "b1.example.evil", "", "https://b1.example"] {
            let why = asked("b1.example", other).unwrap_err();
            assert!(why.contains("another host than its own"), "{other}: {why}");
        }
        // Without an endpoint for clients the id says where it is.
        let mut info = BookieServiceInfo::of_bookie(("x", 1), Some(("b1.example", 8080)));
        info.endpoints.remove(0);
        assert!(Address::registered(&bookie, &info.endpoints).is_ok());
        assert!(Address::registered(&BookieId::new("b1").unwrap(), &info.endpoints).is_err());
        assert_eq!(Address::registered(&bookie, &[]).unwrap_err(), "it has no admin port");
    }

    #[test]
    fn a_token_without_tls_is_safe_on_this_machine_alone() {
        for (text, is_open) in [
            ("127.0.0.1:1", false),
            ("http://127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("LocalHost:1", false),
            ("10.0.0.1:1", true),
            ("[fe80::1]:1", true),
            ("localhost.example.com:1", true),
        ] {
            assert_eq!(Address::parse(text).unwrap().is_open_to_listeners(), is_open, "{text}");
        }
    }

    #[test]
    fn what_a_port_answers_does_nothing_to_the_terminal() {
        let shown = printable(serde_json::json!({ "a\n": ["\x1b[2J", 1, { "b": "x\ry" }] }));
        assert_eq!(shown, serde_json::json!({ "a\\n": ["\\u{1b}[2J", 1, { "b": "x\\ry" }] }));
        let address = Address::parse("127.0.0.1:1").unwrap();
        let words = Words { command: "c", whose: "w", nobody: "n", missing: "m", starting: "s" };
        for status in ["403 x", "500 x", "503 x", "9\x1b x"] {
            let answer = format!("HTTP/1.1 {status}\r\n\r\nno\nbindery: \x1b]0;t\x07yes");
            let failure = body_of(&address, answer.into_bytes(), &words).unwrap_err().to_string();
            assert!(failure.contains("no\\nbindery: \\u{1b}]0;t\\u{7}yes"), "{failure}");
            assert!(!failure.contains(char::is_control), "{failure:?}");
        }
    }

    #[test]
    fn a_token_is_a_header_and_nothing_else() {
        assert_eq!(authorization(None).unwrap(), "");
        assert_eq!(authorization(Some("".into())).unwrap(), "");
        assert_eq!(authorization(Some("s3cret/+=".into())).unwrap(), "Authorization: Bearer s3cret/+=\r\n");
        for wrong in ["two words", "a\r\nX: y", "a\n", "\u{e4}"] {
            let failure = authorization(Some(wrong.into())).unwrap_err();
            assert!(failure.code == exit::USAGE && !failure.to_string().contains(wrong), "{failure}");
        }
    }

    #[test]
    fn a_port_without_tls_is_told_from_one_that_is_not_trusted() {
        let address = Address::parse("h:1").unwrap();
        let of = |error: rustls::Error| {
            unreachable(&address, &io::Error::other(error), &crate::flow::WORDS).to_string()
        };
        let plain = of(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType));
        assert!(plain.contains("write http://"), "{plain}");
        let strange = of(rustls::CertificateError::UnknownIssuer.into());
        assert!(strange.contains(AUTHORITIES_VARIABLE), "{strange}");
    }

    #[test]
    fn answers_that_are_none_say_what_to_do() {
        let address = Address::parse("h:1").unwrap();
        let words = &crate::flow::WORDS;
        let get = |answer: &str| body_of(&address, answer.as_bytes().to_vec(), words);
        assert_eq!(get("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap(), b"{}");
        assert_eq!(get("HTTP/1.1 200 OK\r\n\r\n{}").unwrap(), b"{}");
        let cases = [
            ("", "does not speak HTTP"),
            ("\0\0\0\u{4}bad", "does not speak HTTP"),
            ("SSH-2.0-x\r\n\r\n", "does not speak HTTP"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}", "cut off"),
            ("HTTP/1.0 404 Not Found\r\n\r\n", "has no flow view"),
            ("HTTP/1.0 503 No\r\n\r\nBookie is not fully started yet\n", "still starting"),
            ("HTTP/1.0 401 Unauthorized\r\n\r\na change needs a token\n", "refuses: a change needs a token"),
            ("HTTP/1.0 400 Bad\r\n\r\nlimit: give a number\n", "answers 400: limit: give a number"),
        ];
        for (answer, why) in cases {
            let failure = get(answer).unwrap_err();
            assert!(failure.to_string().contains(why), "{answer:?}: {failure}");
        }
    }
}
