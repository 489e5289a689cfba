//! Facts about this machine that the settings need: its name, and its network interfaces.

use std::net::{IpAddr, ToSocketAddrs};

/// A machine, or a test's idea of one.
pub trait Host {
    /// Its name, as the kernel has it.
    fn name(&self) -> String;

    /// Names of network interfaces, each with one of its addresses; an interface without address is not there.
    fn interfaces(&self) -> Vec<(String, IpAddr)>;

    /// The addresses that a name resolves to. May block.
    fn addresses(&self, name: &str) -> Vec<IpAddr>;

    /// The first name that `/etc/hosts` has for an address.
    fn listed_name(&self, address: IpAddr) -> Option<String>;

    /// The user of this process, as Java's `user.name` has it. May block.
    fn user(&self) -> Option<String>;
}

/// This one.
#[derive(Debug, Clone, Copy)]
pub struct ThisMachine;

impl Host for ThisMachine {
    fn name(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
    }

    fn interfaces(&self) -> Vec<(String, IpAddr)> {
        let Ok(found) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
        let with_address = found.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|socket| IpAddr::V4(socket.ip()));
            let v6 = address.as_sockaddr_in6().map(|socket| IpAddr::V6(socket.ip()));
            Some((interface.interface_name, v4.or(v6)?))
        });
        with_address.collect()
    }

    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        (name, 0)
            .to_socket_addrs()
            .map(|found| found.map(|address| address.ip()).collect())
            .unwrap_or_default()
    }

    fn listed_name(&self, address: IpAddr) -> Option<String> {
        first_name(&std::fs::read_to_string("/etc/hosts").ok()?, address)
    }

    fn user(&self) -> Option<String> {
        nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name)
    }
}

/// The canonical name of an address in the text of a hosts file.
fn first_name(hosts: &str, address: IpAddr) -> Option<String> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let is_it = words.next()?.parse::<IpAddr>().ok()? == address;
        if is_it { words.next().map(str::to_owned) } else { None }
    })
}

/// The address to listen on and to tell of an interface: IPv4 before IPv6, and no link-local one, which means nothing
/// elsewhere.
pub fn address_of(interfaces: &[(String, IpAddr)], name: &str) -> Option<IpAddr> {
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let own = interfaces.iter().filter(|(interface, _)| interface == name).map(|(_, address)| *address);
    own.filter(|address| !is_link_local(address)).min_by_key(IpAddr::is_ipv6)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine of a test.
    #[derive(Debug, Clone)]
    pub struct Fake {
        /// Its name.
        pub name: &'static str,
        /// The address that the name resolves to, if it does.
        pub address: Option<&'static str>,
        /// The name that `/etc/hosts` gives that address.
        pub listed: Option<&'static str>,
        /// Its interfaces.
        pub interfaces: Vec<(&'static str, &'static str)>,
    }

    impl Default for Fake {
        fn default() -> Fake {
            let interfaces = vec![("lo", "127.0.0.1"), ("eth0", "10.0.0.7")];
            Fake { name: "machine", address: Some("10.0.0.7"), listed: None, interfaces }
        }
    }

    impl Host for Fake {
        fn name(&self) -> String {
            self.name.to_owned()
        }

        fn interfaces(&self) -> Vec<(String, IpAddr)> {
            let each = |(name, address): &(&str, &str)| ((*name).to_owned(), address.parse().unwrap());
            self.interfaces.iter().map(each).collect()
        }

        fn addresses(&self, _: &str) -> Vec<IpAddr> {
            self.address.iter().map(|address| address.parse().unwrap()).collect()
        }

        fn listed_name(&self, _: IpAddr) -> Option<String> {
            self.listed.map(str::to_owned)
        }

        fn user(&self) -> Option<String> {
            Some("bookie".to_owned())
        }
    }

    #[test]
    fn the_hosts_file_gives_the_long_name_of_a_pod() {
        let hosts = "127.0.0.1 localhost\n# a comment\n10.0.0.7\tbk-0.bk.ns.svc.cluster.local bk-0 # eth0\n";
        let name = |address: &str| first_name(hosts, address.parse().unwrap());
        assert_eq!(name("10.0.0.7").as_deref(), Some("bk-0.bk.ns.svc.cluster.local"));
        assert_eq!(name("10.0.0.8"), None);
    }

    #[test]
    fn an_interface_gives_an_address_that_others_can_use() {
        let of = |name: &str, address: &str| (name.to_owned(), address.parse().unwrap());
        let all =
            [of("eth0", "fe80::1"), of("eth0", "fd00::2"), of("eth0", "10.0.0.2"), of("eth1", "fe80::3")];
        assert_eq!(address_of(&all, "eth0"), Some("10.0.0.2".parse().unwrap()));
        assert_eq!(address_of(&all, "eth1"), None);
        assert!(ThisMachine.interfaces().iter().any(|(_, address)| address.is_loopback()));
    }
}
