//! Where the bookie listens, and what it tells clients to connect to.

use crate::sources::host::{self, Host};
use crate::sources::values::Values;
use crate::table::Draft;
use crate::table::flags::BookieArgs;
use bindery_server::admin::access::read_tokens;
use bindery_server::config::{AdminScope, BookieConfig};
use bindery_types::{BookieId, bare_host};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The admin port where it has no number.
const ADMIN_PORT: u16 = 8080;

pub(super) fn apply(args: &BookieArgs, file: &mut Values, draft: &mut Draft, host: &dyn Host) {
    bookie_id(args, file, &draft.config);
    listen(args, file, draft, host);
    admin(args, file, draft);
    advertise(args, file, draft, host);
}

fn bookie_id(args: &BookieArgs, file: &mut Values, config: &BookieConfig) {
    let Some(Err(error)) = config.bookie_id.clone().map(BookieId::new) else { return };
    match args.bookie_id {
        Some(_) => file.faults.push(format!("--bookie-id: {error}").into()),
        None => file.fault("bookieId", format!("bookieId: {error}")),
    }
}

fn listen(args: &BookieArgs, file: &mut Values, draft: &mut Draft, host: &dyn Host) {
    let port = draft.address.port.unwrap_or(draft.config.listen.port());
    // As BookKeeper does: addresses of both kinds.
    draft.config.listen = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    if let Some(listen) = args.listen {
        draft.config.listen = listen;
    } else if let Some(name) = &draft.address.interface
        && let Some(ip) =
            bare_host(name).parse::<IpAddr>().ok().or_else(|| by_name(name, file, &draft.config, host))
    {
        draft.config.listen = SocketAddr::from((ip, port));
    }
}

/// The address of a network interface.
fn by_name(name: &str, file: &mut Values, config: &BookieConfig, host: &dyn Host) -> Option<IpAddr> {
    let key = "listeningInterface";
    let interfaces = host.interfaces();
    let Some(ip) = host::address_of(&interfaces, name) else {
        let mut there: Vec<String> = Vec::new();
        for (interface, address) in &interfaces {
            there.push(format!("{interface} ({address})"));
        }
        let there = there.join(", ");
        let text = match interfaces.iter().any(|(interface, _)| interface == name) {
            true => "has no address that others can reach",
            false => "is no network interface of this machine",
        };
        file.fault(
            key,
            format!("{key}={name} {text}; there are {there}: give one of these names, or an IP address"),
        );
        return None;
    };
    if ip.is_loopback() && !config.allow_loopback {
        file.fault(
            key,
            format!(
                "{key}={name} has the address {ip}, which other machines cannot reach: give another interface, or \
                 allowLoopback=true when all clients are on this machine"
            ),
        );
    }
    Some(ip)
}

fn admin(args: &BookieArgs, file: &mut Values, draft: &mut Draft) {
    let Draft { config, address, .. } = draft;
    if let Some(tokens) = &config.admin_tokens
        && let Err(why) = read_tokens(tokens)
    {
        match args.admin_tokens {
            Some(_) => file.faults.push(format!("--admin-tokens: {why}").into()),
            None => file.fault("httpServerTokensFile", format!("httpServerTokensFile: {why}")),
        }
    }
    if config.admin_token_required && config.admin_tokens.is_none() {
        let text = "httpServerTokenRequired=true without httpServerTokensFile: nobody could change anything; give a file of tokens";
        file.fault("httpServerTokenRequired", text.to_owned());
    }
    let is_enabled = address.admin_enabled == Some(true);
    // Java's port for metrics listens on all addresses and serves only metrics. A host that is named applies to the whole admin port,
    // unless that is switched off in so many words.
    let is_for_metrics = args.admin.is_none()
        && !is_enabled
        && (address.admin_host.is_none() || address.admin_enabled == Some(false));
    if is_for_metrics {
        config.admin_scope = AdminScope::Metrics;
    }
    let metrics_port = address.metrics_port.filter(|_| config.metrics_enabled);
    config.admin = args.admin.or_else(|| {
        let port = if is_enabled { Some(address.admin_port.unwrap_or(ADMIN_PORT)) } else { metrics_port }?;
        let (key, host) = match is_for_metrics {
            true => ("prometheusStatsHttpAddress", Some(address.metrics_host.as_deref().unwrap_or("::"))),
            false => ("httpServerHost", address.admin_host.as_deref()),
        };
        let ip = match host {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(host) => match bare_host(host).parse() {
                Ok(ip) => ip,
                Err(_) => {
                    file.fault(key, format!("{key}={host}: give an IP address"));
                    return None;
                }
            },
        };
        Some(SocketAddr::from((ip, port)))
    });
}

/// A flag, an address in the file, the name of this host; otherwise nothing, and the address listened on is told.
fn advertise(args: &BookieArgs, file: &mut Values, draft: &mut Draft, host: &dyn Host) {
    let Draft { config, address, .. } = draft;
    config.advertise = match (&args.advertise, &address.advertised) {
        (Some(text), _) => of_flag(text, file),
        (None, Some(name)) => of_file(name, file, config),
        (None, None) if address.is_by_host_name == Some(true) => {
            of_host(address.is_short == Some(true), file, config, host)
        }
        (None, None) => None,
    };
}

fn of_flag(text: &str, file: &mut Values) -> Option<(String, u16)> {
    match text.rsplit_once(':').map(|(host, port)| (host.to_owned(), port.parse())) {
        Some((host, Ok(port))) if !host.is_empty() => {
            if port == 0 {
                let fault = format!("--advertise {text}: give the port that clients connect to, not 0");
                file.faults.push(fault.into());
            }
            if is_unspecified(&host) {
                file.faults.push(format!("--advertise {text}: {UNSPECIFIED}").into());
            }
            Some((host, port))
        }
        _ => {
            file.faults.push(format!("--advertise {text} is not HOST:PORT").into());
            None
        }
    }
}

fn of_file(name: &str, file: &mut Values, config: &BookieConfig) -> Option<(String, u16)> {
    let key = "advertisedAddress";
    let name = bare_host(name).to_owned();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if is_unspecified(&name) {
        file.fault(key, format!("{key}={name}: {UNSPECIFIED}"));
    } else if name.parse::<IpAddr>().is_err() && !name.chars().all(is_plain) {
        file.fault(
            key,
            format!("{key}={name}: give a host name or an IP address without a port, which is bookiePort"),
        );
    }
    Some((name, config.listen.port()))
}

/// The name that BookKeeper would find: of the address listened on, or of this host's name, the first one of `/etc/hosts`.
fn of_host(
    is_short: bool,
    file: &mut Values,
    config: &BookieConfig,
    host: &dyn Host,
) -> Option<(String, u16)> {
    let key = "useHostNameAsBookieID";
    let name = host.name();
    let address = match config.listen.ip() {
        ip if ip.is_unspecified() => {
            let found = host.addresses(&name);
            let is_wanted = |address: &&IpAddr| address.is_ipv4() && !address.is_loopback();
            found.iter().find(is_wanted).or_else(|| found.first()).copied()
        }
        ip => Some(ip),
    };
    let Some(address) = address else {
        file.fault(
            key,
            format!(
                "{key}=true: the name of this host ({name}) resolves to no address; correct /etc/hosts or DNS, or give the name \
                 that clients reach with advertisedAddress or --advertise HOST:PORT"
            ),
        );
        return None;
    };
    if address.is_loopback() && !config.allow_loopback {
        file.fault(
            key,
            format!(
                "{key}=true: the name of this host ({name}) resolves to {address}, which other machines cannot reach; give \
                 advertisedAddress, or allowLoopback=true when all clients are on this machine"
            ),
        );
        return None;
    }
    let long = host.listed_name(address).unwrap_or(name);
    let name = match is_short {
        true => long.split('.').next().unwrap_or_default().to_owned(),
        false => long,
    };
    let port = config.listen.port();
    file.note(key, format!("{key}=true: clients are told {name}:{port}"));
    Some((name, port))
}

/// Why it cannot be advertised to clients.
const UNSPECIFIED: &str =
    "nobody can connect to this address, give the one that clients reach this machine at";

/// `0.0.0.0`, `::` or `[::]`.
fn is_unspecified(host: &str) -> bool {
    bare_host(host).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}
