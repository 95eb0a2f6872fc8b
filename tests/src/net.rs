//! Ports on loopback, so that several beds live on one machine.

use std::net::{Ipv4Addr, TcpListener};

use crate::error::{BedError, Result};

/// A TCP port on 127.0.0.1 that nobody listens on.
///
/// Taken at random below the range that the system hands to outgoing connections, so
/// that neither those nor another bed starting at the same moment is likely to take it
/// before the program that it is meant for does.
pub fn free_port() -> Result<u16> {
    let mut last = None;
    for _ in 0..100 {
        let port = rand::random_range(20_000..32_000);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    Err(BedError::io(
        "failed to find a free port on 127.0.0.1",
        last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()),
    ))
}
