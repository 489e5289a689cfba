//! Why a server of the metadata store gives no session, told apart by what an operator does about it. Connections to bookies fail in the
//! same words.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

/// What is wrong with one server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its name has no address, or none yet.
    #[error("unknown host ({0})")]
    UnknownHost(String),
    /// Its machine answers, and says that nobody listens there.
    #[error("connection refused, no process listens on that port")]
    Refused,
    /// The network says that there is no way to it.
    #[error("no way to that address ({0})")]
    NoRoute(String),
    /// No connection, and no refusal of one.
    #[error("no connection within {0:?}, and no refusal: a firewall, or a wrong address")]
    Silent(Duration),
    /// It accepts connections, and then says nothing.
    #[error("it accepts connections, and answered nothing within {0:?}")]
    Mute(Duration),
    /// It was not its turn before the time was over.
    #[error("not tried before the time was over")]
    NotTried,
    /// A ZooKeeper server that serves nobody at present.
    #[error("a ZooKeeper server that serves nobody: it is starting, or its ensemble has no quorum")]
    NotServing,
    /// It closes connections and says nothing.
    #[error("{0}")]
    Closed(String),
    /// It is no ZooKeeper server, or that port of one is for others.
    #[error("{0}")]
    WrongProtocol(String),
    /// Somebody has to change a certificate or a setting.
    #[error("{0}")]
    Untrusted(String),
    /// Anything else that may pass.
    #[error("{0}")]
    Other(String),
}

/// Makes a connection by TCP. Cancelling it closes the socket.
///
/// # Errors
/// One that says which step failed: the name, or the connection.
pub async fn connect_tcp(server: impl ToSocketAddrs) -> Result<TcpStream, Fault> {
    let addresses = lookup_host(server).await;
    let addresses: Vec<_> = addresses.map_err(|error| Fault::UnknownHost(error.to_string()))?.collect();
    TcpStream::connect(&addresses[..]).await.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Fault::NoRoute(error.to_string()),
        _ => Fault::Other(error.to_string()),
    })
}

/// Which servers [`connect`](crate::connect) waits for, until its time is over. When it finds that none of them is worth the wait, it
/// fails at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitFor {
    /// Those that say nothing, or serve nobody at the moment. For commands: somebody looks at them.
    Silent,
    /// Also those that are down: a connection is refused, or a name is unknown, while a machine or a container starts. For what
    /// is started together with its metadata store.
    #[default]
    Down,
}

impl Fault {
    /// Whether `wait_for` waits for a server with this fault.
    pub(crate) fn is_waited_for(&self, wait_for: WaitFor) -> bool {
        match self {
            Fault::Silent(_) | Fault::Mute(_) | Fault::NotTried | Fault::NotServing | Fault::Other(_) => true,
            Fault::UnknownHost(_) | Fault::Refused | Fault::NoRoute(_) | Fault::Closed(_) => {
                wait_for == WaitFor::Down
            }
            Fault::WrongProtocol(_) | Fault::Untrusted(_) => false,
        }
    }
}

/// Why no server gives a session: a fault for each, in the order of the URI.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerFaults(pub Vec<(String, Fault)>);

impl ServerFaults {
    /// Whether the same attempt may succeed later without anybody acting on a configuration.
    pub fn is_transient(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(|(_, fault)| fault.is_waited_for(WaitFor::Down))
    }

    /// Whether all that is wrong is trust: certificates, names, secrets in files.
    pub(crate) fn are_all_untrusted(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(_, fault)| matches!(fault, Fault::Untrusted(_)))
    }
}

impl fmt::Display for ServerFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (server, fault)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{server}: {fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_its_fault_and_one_that_may_return_makes_them_transient() {
        let wrong = ("h:3181".to_owned(), Fault::WrongProtocol("the port of a bookie".into()));
        let down = ("h:2181".to_owned(), Fault::Refused);
        let faults = ServerFaults(vec![wrong.clone(), down]);
        assert_eq!(
            faults.to_string(),
            "h:3181: the port of a bookie; h:2181: connection refused, no process listens on that port"
        );
        assert!(faults.is_transient());
        assert!(!ServerFaults(vec![wrong]).is_transient());
    }

    #[test]
    fn commands_wait_for_silence_and_services_also_for_what_is_down() {
        let waited = |fault: Fault| [WaitFor::Silent, WaitFor::Down].map(|wait| fault.is_waited_for(wait));
        assert_eq!(waited(Fault::Silent(Duration::ZERO)), [true, true]);
        assert_eq!(waited(Fault::NotServing), [true, true]);
        assert_eq!(waited(Fault::Refused), [false, true]);
        assert_eq!(waited(Fault::UnknownHost(String::new())), [false, true]);
        assert_eq!(waited(Fault::WrongProtocol(String::new())), [false, false]);
        assert_eq!(waited(Fault::Untrusted(String::new())), [false, false]);
    }
}
