//! Where a bookie listens, and what it is called.

use super::{Key, applied, millis, nothing, ours};
use bindery_server::config::AdminScope;
use std::net::Ipv6Addr;

fn admin_port(view: &super::View<'_>, is_all: bool) -> String {
    let has_scope = (view.config.admin_scope == AdminScope::All) == is_all;
    view.config.admin.filter(|_| has_scope).map_or_else(String::new, |address| address.port().to_string())
}

fn admin_host(view: &super::View<'_>, is_all: bool) -> String {
    let has_scope = (view.config.admin_scope == AdminScope::All) == is_all;
    view.config.admin.filter(|_| has_scope).map_or_else(String::new, |address| address.ip().to_string())
}

pub(super) const KEYS: &[Key] = &[
    applied("bookiePort", "3181", "Port for clients")
        .shown(|view| view.config.listen.port().to_string())
        .flag("--listen", |args| args.listen.is_some()),
    applied(
        "listeningInterface",
        "",
        "Network interface to listen on, by name or by address; all without it",
    )
    .shown(|view| match view.config.listen.ip() {
        ip if ip == Ipv6Addr::UNSPECIFIED => String::new(),
        ip => ip.to_string(),
    })
    .flag("--listen", |args| args.listen.is_some()),
    applied("advertisedAddress", "", "Host name or address that clients connect to")
        .shown(|view| view.config.advertise.as_ref().map_or_else(String::new, |(host, _)| host.clone()))
        .flag("--advertise", |args| args.advertise.is_some()),
    applied("bookieId", "", "Fixed name of the bookie in the cluster; host and port without it")
        .shown(|view| view.config.bookie_id.clone().unwrap_or_default())
        .flag("--bookie-id", |args| args.bookie_id.is_some()),
    applied(
        "useHostNameAsBookieID",
        "false",
        "Advertise the name of this host, not its address; the long name where /etc/hosts has one",
    )
    .shown(|view| {
        let host = view.config.advertise.as_ref().map(|(host, _)| host.as_str());
        host.is_some_and(|host| host.parse::<std::net::IpAddr>().is_err()).to_string()
    })
    .flag("--advertise", |args| args.advertise.is_some()),
    applied(
        "useShortHostName",
        "false",
        "With useHostNameAsBookieID, only what stands before the first dot of the name",
    )
    .shown(|view| {
        let host = view.config.advertise.as_ref().map(|(host, _)| host.as_str());
        host.is_some_and(|host| !host.contains(['.', ':'])).to_string()
    }),
    applied(
        "allowLoopback",
        "false",
        "A loopback address may be advertised: all clients are on this machine",
    )
    .shown(|view| view.config.allow_loopback.to_string())
    .flag("--allow-loopback", |args| args.allow_loopback),
    applied("httpServerEnabled", "false", "Serve health, state and metrics over HTTP")
        .shown(|view| (view.config.admin.is_some() && view.config.admin_scope == AdminScope::All).to_string())
        .flag("--admin", |args| args.admin.is_some()),
    applied("httpServerHost", "0.0.0.0", "IP address of that port; 127.0.0.1 here when it is not set")
        .shown(|view| admin_host(view, true))
        .flag("--admin", |args| args.admin.is_some()),
    applied("httpServerPort", "8080", "The port, when httpServerEnabled is true; 8080 when it is not set")
        .shown(|view| admin_port(view, true))
        .flag("--admin", |args| args.admin.is_some()),
    ours(
        "httpServerTokensFile",
        "File of the tokens with which other machines may change something over the HTTP port",
    )
    .shown(|view| {
        view.config.admin_tokens.as_ref().map_or_else(String::new, |file| file.display().to_string())
    })
    .flag("--admin-tokens", |args| args.admin_tokens.is_some()),
    ours(
        "httpServerTokenRequired",
        "Changes over the HTTP port need a token from this machine, too",
    )
    .shown(|view| view.config.admin_token_required.to_string()),
    ours(
        "httpServerNames",
        "Names, with commas between them, by which programs on this machine ask the HTTP port, besides addresses, localhost and the \
         advertised name: for a proxy that passes them on",
    )
    .shown(|view| view.config.admin_names.join(",")),
    applied("prometheusStatsHttpEnable", "true", "Whether prometheusStatsHttpPort opens a port")
        .shown(|view| view.config.metrics_enabled.to_string()),
    applied(
        "prometheusStatsHttpPort",
        "8000",
        "Without httpServerEnabled, a port for /metrics and /heartbeat only",
    )
    .shown(|view| admin_port(view, false))
    .flag("--admin", |args| args.admin.is_some()),
    applied("prometheusStatsHttpAddress", "0.0.0.0", "IP address of the port for metrics")
        .shown(|view| admin_host(view, false))
        .flag("--admin", |args| args.admin.is_some()),
    ours("slowRequestThresholdMSec", "A slower request is logged with its stages; 0 for none")
        .unit("ms")
        .shown(|view| millis(view.config.limits.slow_request)),
    nothing(
        "allowEphemeralPorts",
        "false",
        "Port 0 is allowed",
        "port 0 lets the kernel choose here, which only tests have a use for",
    ),
    nothing(
        "enableLocalTransport",
        "false",
        "Serve clients in the same Java process",
        "there is no Java process",
    ),
    super::refused(
        "disableServerSocketBind",
        "false",
        "Serve clients in the same Java process only",
        super::is_true,
        "this bookie is reached over the network only, and would open a port that is meant to stay closed; remove the line",
    ),
    nothing(
        "httpServerClass",
        "",
        "Java class that serves HTTP",
        "the HTTP server is built in: httpServerEnabled switches it on",
    ),
];
