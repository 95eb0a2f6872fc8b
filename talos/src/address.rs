//! Where a node's API listens.

use std::fmt;

use rustls_pki_types::ServerName;

/// The port of Talos' API where an address names none.
pub const DEFAULT_PORT: u16 = 50000;

/// A node's API endpoint: a host name or IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// An address that cannot be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address:?} is no node address: {why}; write a host name or an IP address, with a port if it is not {DEFAULT_PORT}"
)]
pub struct BadAddress {
    /// What was given.
    pub address: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl NodeAddress {
    /// Reads `host`, `host:port`, an IPv6 address, or `[IPv6]:port`.
    pub fn parse(address: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress {
            address: address.to_owned(),
            why,
        };
        let (host, port) = if let Some(rest) = address.strip_prefix('[') {
            let (host, after) = rest
                .split_once(']')
                .ok_or_else(|| bad("the bracket is not closed"))?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(bad("something other than a port follows the bracket")),
            }
        } else {
            match address.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (address, None),
            }
        };
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| bad("the port is no number from 1 to 65535"))?,
            None => DEFAULT_PORT,
        };
        let parsed = Self {
            host: host.to_owned(),
            port,
        };
        if parsed.server_name().is_none() {
            return Err(bad("the host is neither a DNS name nor an IP address"));
        }
        Ok(parsed)
    }

    /// The name that the node's certificate must carry.
    pub(crate) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.clone()).ok()
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:50000"),
            ("10.0.0.1:51000", "10.0.0.1:51000"),
            ("cp-1.example.org", "cp-1.example.org:50000"),
            ("cp-1.example.org:1", "cp-1.example.org:1"),
            ("fd00::1", "[fd00::1]:50000"),
            ("[fd00::1]", "[fd00::1]:50000"),
            ("[fd00::1]:51000", "[fd00::1]:51000"),
        ] {
            assert_eq!(
                NodeAddress::parse(text).map(|a| a.to_string()).as_deref(),
                Ok(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":50000",
            "cp 1",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "[fd00::1",
            "[fd00::1]x",
            "https://cp-1",
            "[]:1",
        ] {
            assert!(
                NodeAddress::parse(text).is_err(),
                "{text:?} was taken for an address"
            );
        }
    }
}
