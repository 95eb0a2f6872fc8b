//! What no two machines of a cluster share (spec section 3, "no way round"): the address
//! and the Node's name.

use std::net::IpAddr;

use ichor_api::TalosMachine;

/// What two machines both claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The other machine.
    pub with: String,
    /// The field: `spec.address` or `spec.nodeName`.
    pub field: &'static str,
    /// The value as this machine has it.
    pub value: String,
}

impl std::fmt::Display for Clash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {:?} belongs to TalosMachine {} already: no two machines of a cluster share one. \
             Correct the one that is wrong; if {} is gone, delete it first",
            self.field, self.value, self.with, self.with
        )
    }
}

/// The port of Talos' API where an address names none.
const DEFAULT_PORT: u16 = 50000;

/// One spelling of an address: host in lower case, IP addresses in their shortest form,
/// the port written. What is no address stays as it is.
fn canonical(address: &str) -> (String, u16) {
    let host_of = |host: &str| match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => host.trim_end_matches('.').to_ascii_lowercase(),
    };
    if let Some((host, after)) = address
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        let port = after.strip_prefix(':').and_then(|p| p.parse().ok());
        return (host_of(host), port.unwrap_or(DEFAULT_PORT));
    }
    match address.split_once(':') {
        Some((host, port)) if !port.contains(':') => {
            (host_of(host), port.parse().unwrap_or(DEFAULT_PORT))
        }
        _ => (host_of(address), DEFAULT_PORT),
    }
}

/// Whether two addresses name the same endpoint, however they are written.
pub fn same_address(a: &str, b: &str) -> bool {
    canonical(a) == canonical(b)
}

/// The first machine of `machines` (all of one cluster) that claims the address or the
/// Node name of `machine` too. Machines being deleted count: their node is still there.
pub fn clash(machines: &[TalosMachine], machine: &TalosMachine) -> Option<Clash> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let others = || {
        machines
            .iter()
            .filter(|other| other.metadata.name.as_deref() != Some(name))
    };
    let found = |other: &TalosMachine, field, value: &str| Clash {
        with: other.metadata.name.clone().unwrap_or_default(),
        field,
        value: value.to_owned(),
    };
    let address = &machine.spec.address;
    if let Some(other) = others().find(|o| same_address(&o.spec.address, address)) {
        return Some(found(other, "spec.address", address));
    }
    let node = machine.spec.node_name.as_deref()?;
    others()
        .find(|o| o.spec.node_name.as_deref() == Some(node))
        .map(|other| found(other, "spec.nodeName", node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{control_plane, time};

    #[test]
    fn one_endpoint_has_many_spellings() {
        for (a, b, same) in [
            ("10.0.0.1", "10.0.0.1:50000", true),
            ("10.0.0.1", "10.0.0.1:50001", false),
            ("10.0.0.1", "10.0.0.10", false),
            ("fd00::1", "[FD00:0:0::1]:50000", true),
            ("[fd00::1]", "[fd00::1]:50001", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("CP-1.Example.org", "cp-1.example.org.", true),
            ("cp-1.example.org", "cp-1.example.com", false),
            ("", "x", false),
        ] {
            assert_eq!(same_address(a, b), same, "{a} and {b}");
        }
    }

    #[test]
    fn a_machine_does_not_clash_with_itself_but_with_one_being_deleted() {
        let mut one = control_plane("cp-1");
        let two = control_plane("cp-2");
        assert_eq!(clash(std::slice::from_ref(&one), &one), None);
        one.metadata.deletion_timestamp = Some(time());
        let clash = clash(&[one, two.clone()], &two).expect("they share an address");
        assert_eq!((clash.with.as_str(), clash.field), ("cp-1", "spec.address"));
        assert!(
            clash
                .to_string()
                .contains("\"192.0.2.1\" belongs to TalosMachine cp-1")
        );
    }

    #[test]
    fn node_names_clash_only_where_both_are_set() {
        let mut one = control_plane("cp-1");
        let mut two = control_plane("cp-2");
        two.spec.address = "192.0.2.2".into();
        assert_eq!(clash(std::slice::from_ref(&one), &two), None);
        two.spec.node_name = Some("n".into());
        assert_eq!(clash(std::slice::from_ref(&one), &two), None);
        one.spec.node_name = Some("n".into());
        assert_eq!(clash(&[one], &two).map(|c| c.field), Some("spec.nodeName"));
    }
}
