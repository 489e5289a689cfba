//! Where a bookie listens, and what it is called.

use super::{Draft, Key, Place, applied, at, nothing, ours};
use bindery_server::config::AdminScope;
use std::net::{Ipv6Addr, SocketAddr};

/// The admin port, if it is all of it or, else, the port for metrics only.
fn admin(draft: &Draft, is_all: bool) -> Option<SocketAddr> {
    draft.config.admin.filter(|_| (draft.config.admin_scope == AdminScope::All) == is_all)
}

/// The name that clients are told, or its absence.
fn advertised(draft: &Draft) -> Option<&str> {
    draft.config.advertise.as_ref().map(|(host, _)| host.as_str())
}

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("bookiePort", "3181", "Port for clients")
        .number(at!(address.port as u16 => |draft| Some(draft.config.listen.port().into()))).within(0, 65_535)
        .flag("--listen", |args| args.listen.is_some()),
    applied("listeningInterface", "", "Network interface to listen on, by name or by address; all without it")
        .text(at!(address.interface => |draft| Some(draft.config.listen.ip()).filter(|ip| *ip != Ipv6Addr::UNSPECIFIED).map(|ip| ip.to_string())))
        .flag("--listen", |args| args.listen.is_some()),
    applied("advertisedAddress", "", "Host name or address that clients connect to")
        .text(at!(address.advertised => |draft| advertised(draft).map(str::to_owned))).flag("--advertise", |args| args.advertise.is_some()),
    applied("bookieId", "", "Fixed name of the bookie in the cluster; host and port without it")
        .text(at!(config.bookie_id, if given).flag("--bookie-id", |args| args.bookie_id.clone())),
    applied("useHostNameAsBookieID", "false", "Advertise the name of this host, not its address; the long name where /etc/hosts has one")
        .switch(at!(address.is_by_host_name => |draft| Some(advertised(draft).is_some_and(|host| host.parse::<std::net::IpAddr>().is_err()))))
        .leads_to("advertisedAddress").flag("--advertise", |args| args.advertise.is_some()),
    applied("useShortHostName", "false", "With useHostNameAsBookieID, only what stands before the first dot of the name")
        .switch(at!(address.is_short => |draft| Some(advertised(draft).is_some_and(|host| !host.contains(['.', ':']))))),
    applied("allowLoopback", "false", "A loopback address may be advertised: all clients are on this machine")
        .switch(at!(config.allow_loopback).flag("--allow-loopback", |args| args.allow_loopback.then_some(true))),
    applied("httpServerEnabled", "false", "Serve health, state and metrics over HTTP")
        .switch(at!(address.admin_enabled => |draft| Some(admin(draft, true).is_some()))).flag("--admin", |args| args.admin.is_some()),
    applied("httpServerHost", "0.0.0.0", "IP address of that port; 127.0.0.1 here when it is not set")
        .text(at!(address.admin_host => |draft| admin(draft, true).map(|address| address.ip().to_string())))
        .flag("--admin", |args| args.admin.is_some()),
    applied("httpServerPort", "8080", "The port, when httpServerEnabled is true; 8080 when it is not set")
        .number(at!(address.admin_port as u16 => |draft| admin(draft, true).map(|address| address.port().into()))).within(0, 65_535)
        .flag("--admin", |args| args.admin.is_some()),
    ours("httpServerTokensFile",
        "File of tokens, one in a line, with which other machines may change something over the HTTP port; without it only this machine may")
        .path(
            at!(config.admin_tokens, from root => |draft| draft.config.admin_tokens.clone())
                .flag("--admin-tokens", |args| args.admin_tokens.clone()),
        ),
    ours("httpServerTokenRequired", "Changes over the HTTP port need a token from this machine, too")
        .switch(at!(config.admin_token_required)),
    ours("httpServerNames",
        "Names, with commas between them, by which programs on this machine ask the HTTP port, besides addresses, localhost and the \
         advertised name: for a proxy that passes them on")
        .text(Place::new(
            |draft, names| {
                let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                draft.config.admin_names = names.map(str::to_owned).collect();
            },
            |draft| Some(draft.config.admin_names.join(",")),
        )),
    applied("prometheusStatsHttpEnable", "true", "Whether prometheusStatsHttpPort opens a port").switch(at!(config.metrics_enabled)),
    applied("prometheusStatsHttpPort", "8000", "Without httpServerEnabled, a port for /metrics and /heartbeat only")
        .number(at!(address.metrics_port as u16 => |draft| admin(draft, false).map(|address| address.port().into()))).within(0, 65_535)
        .flag("--admin", |args| args.admin.is_some()),
    applied("prometheusStatsHttpAddress", "0.0.0.0", "IP address of the port for metrics")
        .text(at!(address.metrics_host => |draft| admin(draft, false).map(|address| address.ip().to_string())))
        .flag("--admin", |args| args.admin.is_some()),
    ours("slowRequestThresholdMSec", "A slower request is logged with its stages; 0 for none").millis(at!(config.limits.slow_request)),
    nothing("allowEphemeralPorts", "false", "Port 0 is allowed", "port 0 lets the kernel choose here, which only tests have a use for"),
    nothing("enableLocalTransport", "false", "Serve clients in the same Java process",
        "there is no Java process"), super::refused("disableServerSocketBind", "false", "Serve clients in the same Java process only",
        super::is_true, "this bookie is reached over the network only, and would open a port that is meant to stay closed; remove the line"),
    nothing("httpServerClass", "", "Java class that serves HTTP", "the HTTP server is built in: httpServerEnabled switches it on"),
];
