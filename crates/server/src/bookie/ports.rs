//! The ports of a bookie, for clients and for the operator.

use super::{StartError, blocking};
use crate::admin::access::Access;
use crate::admin::{self, AdminState};
use crate::auth::Auth;
use crate::config::BookieConfig;
use crate::latch::Latch;
use crate::memory::MemoryPlan;
use crate::sockets;
use crate::tls::Tls;
use bindery_flow::ByteBudget;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Attempts to bind a port that is taken, and the pause between them: half a second in all.
const BIND_ATTEMPTS: u32 = 25;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Says what the kernel may keep for each connection, and warns when that differs from the configuration.
pub(super) fn log_socket(config: &BookieConfig, plan: &MemoryPlan, socket: &TcpListener) {
    let options = &config.limits.socket;
    let granted = match options.apply(socket).and_then(|()| options.granted(socket)) {
        Ok(granted) => granted,
        Err(error) => {
            tracing::warn!(%error, "cannot set a socket option: connections are served without it and the options \
             after it");
            return;
        }
    };
    tracing::info!("{}", plan.kernel_line(granted));
    let sides = [
        ("serverSendBufferSizeBytes", options.send_buffer_bytes, granted.send, "net.core.wmem_max"),
        ("serverReceiveBufferSizeBytes", options.receive_buffer_bytes, granted.receive, "net.core.rmem_max"),
    ];
    for (key, wanted, granted, sysctl) in sides {
        if granted < wanted / 2 * 2 {
            tracing::warn!(
                "{key}={wanted}: the kernel grants only {granted}; raise {sysctl} to {}",
                wanted / 2
            );
        }
    }
}

/// The admin port; it ends with its owner, also when the start fails half-way.
pub(super) struct AdminTask(JoinHandle<()>);

impl Drop for AdminTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The locks are ours, so a port still taken may be that of the process before, which is just ending.
pub(super) async fn bind_patiently(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 0..BIND_ATTEMPTS {
        match sockets::listen(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(BIND_PAUSE).await,
            other => return other,
        }
    }
    sockets::listen(address)
}

pub(super) async fn start_admin(
    config: &BookieConfig,
    users: Option<Arc<Auth>>,
    state: &Arc<AdminState>,
    answers: &ByteBudget,
    stop: &Arc<Latch>,
) -> Result<(Option<AdminTask>, Option<SocketAddr>), StartError> {
    let Some(address) = config.admin else { return Ok((None, None)) };
    if let Some(tls) = config.admin_tls.clone() {
        // Its handshakes have a turn of their own.
        let tls = blocking(move || Tls::open(tls, crate::turns::Turns::new(1))).await?;
        assert!(state.tls.set(Arc::new(tls)).is_ok(), "a bookie has one admin port");
    }
    let failed = |source| StartError::Bind { address, option: config.option_names.admin, source };
    let listener = bind_patiently(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let patience = config.limits.admin_patience;
    let advertised = config.advertise.iter().map(|(host, _)| host.clone());
    let names: Vec<String> = advertised.chain(config.admin_names.iter().cloned()).collect();
    let task = tokio::spawn(admin::serve(
        listener,
        config.admin_scope,
        Access::new(config.admin_tokens.clone())
            .with_users(users)
            .requiring_token(config.admin_token_required)
            .named(names),
        state.clone(),
        answers.clone(),
        patience,
        stop.clone(),
    ));
    Ok((Some(AdminTask(task)), Some(bound)))
}
