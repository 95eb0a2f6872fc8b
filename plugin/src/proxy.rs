//! Which proxy a connection goes through, in kubectl's order: the kubeconfig's
//! `proxy-url` before everything else, then the environment, minus `NO_PROXY`.
//!
//! kube's own reading asks `NO_PROXY` about the proxy's address, not the server's.

use std::net::IpAddr;

use crate::io::Env;

/// The proxy for `server`, or `None`. `configured` is the kubeconfig's `proxy-url`; it
/// wins, and `NO_PROXY` says nothing about it (as in client-go).
pub fn choose(configured: Option<&str>, server: &http::Uri, env: &Env) -> Option<String> {
    if let Some(configured) = configured.filter(|c| !c.is_empty()) {
        return Some(configured.to_owned());
    }
    let host = server.host()?.trim_matches(['[', ']']);
    let https = server.scheme_str() != Some("http");
    let port = server.port_u16().unwrap_or(if https { 443 } else { 80 });
    let names: &[&str] = if https {
        &["HTTPS_PROXY", "https_proxy"]
    } else {
        &["HTTP_PROXY", "http_proxy"]
    };
    let proxy = names.iter().find_map(|name| env.get(name))?;
    let no_proxy = env
        .get("NO_PROXY")
        .or_else(|| env.get("no_proxy"))
        .unwrap_or_default();
    if is_local(host) || excepted(no_proxy, host, port) {
        return None;
    }
    Some(if proxy.contains("://") {
        proxy.to_owned()
    } else {
        format!("http://{proxy}")
    })
}

/// Go never sends requests to one's own machine through a proxy of the environment.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn excepted(no_proxy: &str, host: &str, port: u16) -> bool {
    let host = host.to_ascii_lowercase();
    let ip = host.parse::<IpAddr>().ok();
    no_proxy
        .split(',')
        .map(|entry| entry.trim().to_ascii_lowercase())
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            if entry == "*" {
                return true;
            }
            if let Some((network, bits)) = entry.split_once('/') {
                return ip.is_some_and(|ip| in_network(ip, network, bits));
            }
            // `host:port` holds for that port alone. A bare IPv6 address has colons too.
            let (name, only) = match entry.rsplit_once(':') {
                Some((name, digits)) if entry.parse::<IpAddr>().is_err() => {
                    (name.to_owned(), digits.parse::<u16>().ok())
                }
                _ => (entry, None),
            };
            if only.is_some_and(|only| only != port) {
                return false;
            }
            let name = name.trim_matches(['[', ']']);
            if ip.is_some() {
                return name.parse::<IpAddr>().ok() == ip;
            }
            // `.example.com` and `*.example.com` mean what is below it alone,
            // `example.com` that and itself.
            let domain = name.trim_start_matches('*');
            match domain.strip_prefix('.') {
                Some(_) => host.ends_with(domain),
                None => host == domain || host.ends_with(&format!(".{domain}")),
            }
        })
}

fn in_network(ip: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        Env {
            vars: pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    fn chosen(configured: Option<&str>, server: &str, vars: &[(&str, &str)]) -> Option<String> {
        choose(configured, &server.parse().unwrap(), &env(vars))
    }

    #[test]
    fn the_kubeconfigs_proxy_beats_the_environment_and_no_proxy() {
        assert_eq!(
            chosen(
                Some("socks5://10.0.0.9:1080"),
                "https://10.0.0.1:6443",
                &[("HTTPS_PROXY", "http://10.0.0.8:3128"), ("NO_PROXY", "*")]
            )
            .as_deref(),
            Some("socks5://10.0.0.9:1080")
        );
    }

    #[test]
    fn no_proxy_is_asked_about_the_server() {
        let via = |server, no_proxy| {
            chosen(
                None,
                server,
                &[("https_proxy", "10.0.0.8:3128"), ("no_proxy", no_proxy)],
            )
            .is_some()
        };
        assert_eq!(
            chosen(
                None,
                "https://api.example.com:6443",
                &[("https_proxy", "10.0.0.8:3128")]
            )
            .as_deref(),
            Some("http://10.0.0.8:3128")
        );
        assert!(via("https://api.example.com:6443", "10.0.0.8"));
        for no_proxy in [
            "*",
            "example.com",
            ".example.com",
            "*.example.com",
            "api.example.com:6443",
            "x, API.example.com",
        ] {
            assert!(!via("https://api.example.com:6443", no_proxy), "{no_proxy}");
        }
        for no_proxy in ["ample.com", "api.example.com:443", ".api.example.com"] {
            assert!(via("https://api.example.com:6443", no_proxy), "{no_proxy}");
        }
        assert!(!via("https://10.1.2.3:6443", "10.0.0.0/8"));
        assert!(via("https://11.1.2.3:6443", "10.0.0.0/8"));
        assert!(!via("https://[fd00::1]:6443", "fd00::/16"));
        assert!(!via("https://[fd00::1]:6443", "fd00::1"));
    }

    #[test]
    fn the_environment_never_takes_ones_own_machine_through_a_proxy() {
        let vars = [("HTTPS_PROXY", "http://10.0.0.8:3128")];
        assert_eq!(chosen(None, "https://127.0.0.1:6443", &vars), None);
        assert_eq!(chosen(None, "https://localhost:6443", &vars), None);
        assert!(chosen(Some("http://127.0.0.1:1"), "https://127.0.0.1:6443", &[]).is_some());
    }
}
