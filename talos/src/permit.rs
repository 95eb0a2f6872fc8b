//! The lock's witnesses, as `ichor-lock` will provide them.
use std::marker::PhantomData;

/// Holds the cluster lock.
#[derive(Debug)]
pub struct DisruptiveLock(());

/// Allows one irreversible call.
#[derive(Debug)]
pub struct Permit<'l>(PhantomData<&'l DisruptiveLock>);

/// A call in flight.
#[derive(Debug)]
pub struct Sending<'l>(PhantomData<&'l DisruptiveLock>);

/// Too late to send.
#[derive(Debug, thiserror::Error)]
#[error("the permit is stale")]
pub struct PermitStale;

impl<'l> Permit<'l> {
    /// Right before the send.
    pub fn begin(self) -> Result<Sending<'l>, PermitStale> {
        Ok(Sending(PhantomData))
    }
}

impl Sending<'_> {
    /// The call is over.
    pub fn finish(self) {}
}
