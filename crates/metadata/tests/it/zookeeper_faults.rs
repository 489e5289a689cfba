//! What the ZooKeeper driver says of servers that give no session, and which of them it waits for.

use bindery_metadata::store::{MetadataStore, StoreError};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions};
use bindery_metadata::{Fault, WaitFor};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server of this test, which does the same with each connection until it is dropped.
struct Port {
    address: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Port {
    /// Answers the first bytes of each connection with what `answer` says, `None` for nothing and the end of the connection.
    async fn answering(answer: impl Fn(&[u8]) -> Option<&'static [u8]> + Send + 'static) -> Port {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 64];
                let read = stream.read(&mut request).await.unwrap_or(0);
                if let Some(answer) = answer(&request[..read]) {
                    let _ = stream.write_all(answer).await;
                    held.push(stream);
                }
            }
        });
        Port { address, task }
    }

    /// One to which nobody listens.
    async fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().to_string()
    }
}

/// As a command connects.
fn at_once() -> ZooKeeperOptions {
    ZooKeeperOptions { wait_for: WaitFor::Silent, ..ZooKeeperOptions::default() }
}

async fn no_session(servers: &[String], options: ZooKeeperOptions) -> StoreError {
    zookeeper::connect(servers, options).await.err().expect("no session")
}

/// `waited` says whether the time was waited out; the clock of a test is no proof of that.
async fn fault_of(server: &str, options: ZooKeeperOptions) -> (Fault, bool) {
    match no_session(&[server.to_owned()], options).await {
        StoreError::Unreachable { faults, waited } => {
            let [(of, fault)] = &faults.0[..] else { panic!("{faults}") };
            assert_eq!(of, server);
            (fault.clone(), !waited.is_zero())
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_port_of_another_kind_is_named_at_once() {
    let http = Port::answering(|_| Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let alert = Port::answering(|_| Some(b"\x15\x03\x03\0\x02\x02\x46")).await;
    let huge = Port::answering(|_| Some(b"\xff\xff\xff\xff")).await;
    let short = Port::answering(|_| Some(b"\0\0\0\x02ab")).await;
    // One that waits for the rest of what it takes for a record.
    let tls =
        Port::answering(|request| Some(if request[0] == 0x16 { b"\x15\x03\x03\0\x02\x02\x28" } else { b"" }))
            .await;
    let bookie = Port::answering(|request| {
        let is_read = request.get(4..6) == Some(&[2, 2]);
        is_read.then_some(b"\0\0\0\x18\x02\x02\0\0\0\0\0\x01\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0")
    })
    .await;
    for (port, word) in [
        (&http, "HTTP"),
        (&alert, "TLS"),
        (&tls, "TLS"),
        (&huge, "4294967295 bytes"),
        (&short, "shorter"),
        (&bookie, "bookie"),
    ] {
        // Nothing of that passes, so a service does not wait either.
        for options in [at_once(), ZooKeeperOptions::default()] {
            let (fault, is_waited) = fault_of(&port.address, options).await;
            assert!(matches!(&fault, Fault::WrongProtocol(why) if why.contains(word)), "{word}: {fault}");
            assert!(!is_waited, "{word}");
        }
    }
}

#[tokio::test]
async fn what_is_down_is_said_to_a_command_at_once_and_waited_for_by_a_service() {
    let nobody = Port::closed().await;
    // Refused by the resolver itself, also where no name server answers.
    let unknown = "-nowhere.invalid:2181".to_owned();
    assert_eq!(fault_of(&nobody, at_once()).await, (Fault::Refused, false));
    let (fault, is_waited) = fault_of(&unknown, at_once()).await;
    assert!(matches!(fault, Fault::UnknownHost(_)) && !is_waited, "{fault}");

    let short =
        ZooKeeperOptions { connect_timeout: Some(Duration::from_millis(300)), ..ZooKeeperOptions::default() };
    assert_eq!(fault_of(&nobody, short.clone()).await, (Fault::Refused, true));
    let (fault, is_waited) = fault_of(&unknown, short).await;
    assert!(matches!(fault, Fault::UnknownHost(_)) && is_waited, "{fault}");
}

#[tokio::test]
async fn a_server_that_says_nothing_or_serves_nobody_is_waited_for() {
    let short = ZooKeeperOptions { connect_timeout: Some(Duration::from_millis(700)), ..at_once() };
    let mute = Port::answering(|_| Some(b"")).await;
    let (fault, is_waited) = fault_of(&mute.address, short.clone()).await;
    assert!(matches!(fault, Fault::Mute(_)) && is_waited, "{fault}");
    let electing = Port::answering(|request| {
        request
            .starts_with(b"srvr")
            .then_some(&b"This ZooKeeper instance is not currently serving requests\n"[..])
    })
    .await;
    let (fault, is_waited) = fault_of(&electing.address, short).await;
    assert_eq!((fault, is_waited), (Fault::NotServing, true));
    // As the port for TLS of one that is electing.
    let short = ZooKeeperOptions { connect_timeout: Some(Duration::from_millis(700)), ..at_once() };
    let closing = Port::answering(|_| None).await;
    let (fault, is_waited) = fault_of(&closing.address, short.clone()).await;
    assert!(matches!(fault, Fault::Closed(_)) && is_waited, "{fault}");
    // One that speaks the protocol, and opens no session.
    let refusing = Port::answering(|_| Some(&NO_SESSION)).await;
    let (fault, is_waited) = fault_of(&refusing.address, short).await;
    assert!(matches!(&fault, Fault::Other(why) if why.contains("no session")) && is_waited, "{fault}");
}

/// The answer to a connect request that grants no session: length, protocol version, timeout 0, id 0, a password of zeros.
const NO_SESSION: [u8; 40] = {
    let mut frame = [0; 40];
    frame[3] = 36;
    frame[4 + 19] = 16;
    frame
};

#[tokio::test]
async fn all_servers_have_to_fail_and_each_fault_is_named() {
    let (nobody, http) =
        (Port::closed().await, Port::answering(|_| Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await);
    let servers = [nobody.clone(), http.address.clone()];
    let StoreError::Unreachable { faults, waited } = no_session(&servers, at_once()).await else {
        panic!("unreachable")
    };
    assert!(waited.is_zero());
    let named: Vec<&str> = faults.0.iter().map(|(server, _)| server.as_str()).collect();
    assert_eq!(named, [nobody.as_str(), http.address.as_str()], "in the order of the URI: {faults}");
    assert_eq!(faults.0[0].1, Fault::Refused);
    assert!(faults.to_string().contains("HTTP"), "{faults}");
    let mute = Port::answering(|_| Some(b"")).await;
    let short = ZooKeeperOptions { connect_timeout: Some(Duration::from_millis(700)), ..at_once() };
    let error = no_session(&[nobody.clone(), mute.address.clone()], short).await;
    assert!(matches!(&error, StoreError::Unreachable { waited, .. } if !waited.is_zero()), "{error}");
    let error = error.to_string();
    assert!(error.contains(&nobody) && error.contains(&mute.address) && error.contains("refused"), "{error}");
}

/// A store that was restored from a copy refuses a client that has seen more than it has, before it looks at the session: the client leaves that out
/// once no server has spoken for a session timeout.
#[tokio::test]
async fn a_store_with_fewer_transactions_is_connected_to_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (grant, refuse) = (1_000_i32, 0_i32);
    let answer = |timeout: i32, session: i64| {
        let mut out = 36_i32.to_be_bytes().to_vec();
        out.extend(0_i32.to_be_bytes());
        out.extend(timeout.to_be_bytes());
        out.extend(session.to_be_bytes());
        out.extend(16_i32.to_be_bytes());
        out.extend([7; 16]);
        out
    };
    let server = async {
        let mut held = Vec::new();
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            let read = stream.read(&mut request).await.unwrap_or(0);
            if read < 28 {
                continue;
            }
            let zxid = i64::from_be_bytes(request[8..16].try_into().unwrap());
            let session = i64::from_be_bytes(request[20..28].try_into().unwrap());
            match (number, zxid, session) {
                (0, _, _) => {
                    stream.write_all(&answer(grant, 5)).await.unwrap();
                    // A request, which is answered with "no such node" as of transaction 100; then the store is gone.
                    let read = stream.read(&mut request).await.unwrap();
                    assert!(read >= 8);
                    let mut reply = 16_i32.to_be_bytes().to_vec();
                    reply.extend(&request[4..8]);
                    reply.extend(100_i64.to_be_bytes());
                    reply.extend((-101_i32).to_be_bytes());
                    stream.write_all(&reply).await.unwrap();
                }
                // The copy has fewer.
                (_, 100, _) => {}
                (_, 0, 0) => {
                    stream.write_all(&answer(grant, 6)).await.unwrap();
                    held.push(stream);
                    return held;
                }
                (_, 0, 5) => stream.write_all(&answer(refuse, 0)).await.unwrap(),
                other => panic!("{other:?}"),
            }
        }
        unreachable!()
    };
    let client = async {
        let options =
            ZooKeeperOptions { session_timeout: Duration::from_secs(1), ..ZooKeeperOptions::default() };
        let store = zookeeper::connect(std::slice::from_ref(&address), options).await.unwrap();
        let found = store.get("/nowhere").await;
        assert!(matches!(found, Err(StoreError::NoNode { .. })), "{found:?}");
        // It lives until the server has seen it again.
        std::future::pending::<()>().await
    };
    let seen = async {
        tokio::select! {
            held = server => drop(held),
            () = client => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it connects again");
}
