//! How a host and a port are written together. An IPv6 address has colons of its own, so it stands in brackets there, and nowhere else:
//! what connects, resolves a name or compares it with a certificate takes it bare.

/// `host:port`, with an IPv6 address in brackets.
///
/// ```
/// assert_eq!(bindery_types::host_and_port("::1", 3181), "[::1]:3181");
/// assert_eq!(bindery_types::host_and_port("bookie.example", 3181), "bookie.example:3181");
/// ```
pub fn host_and_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A host without the brackets that an IPv6 address has beside a port.
///
/// ```
/// assert_eq!(bindery_types::bare_host("[::1]"), "::1");
/// assert_eq!(bindery_types::bare_host("::1"), "::1");
/// ```
pub fn bare_host(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
