//! A lock whose operation is gone (spec section 4, last sentence of Settling).

use tracing::info;

use crate::protocol;
use crate::store_call::{self, Written};
use crate::{
    AcquireError, Holder, LeaseError, LeaseRecord, LeaseStore, LockManager, Operation, View,
};

/// Takes the holder off a Lease that names `gone`, an operation whose object does not exist any
/// more (read directly, by UID: one re-created under the same name is another). For any leader.
///
/// `seen` is the Lease as the caller read it, and from which it has taken note of the step that
/// was left ([`LeaseRecord::step_of`]); only that very record is cleared. Where it does not name
/// `gone`, nothing is to be done and nothing is.
///
/// # Errors
/// - [`AcquireError::Unsettled`] while an intent of it is unsettled.
/// - [`AcquireError::Held`] while a task of this process holds it (which then finds its object
///   gone itself), or another agent that may have a call in flight still renews it.
/// - [`AcquireError::View`], [`AcquireError::Store`].
pub async fn clear_abandoned(
    manager: &LockManager,
    store: &dyn LeaseStore,
    view: &dyn View,
    seen: &LeaseRecord,
    gone: &Operation,
) -> Result<(), AcquireError> {
    let key = store.key();
    let process = manager.process();
    let slot = manager.slot(&key);
    let _one_at_a_time = slot.acquiring.lock().await;
    let Some(identity) = seen.held_by() else {
        return Ok(());
    };
    let Some(holder) =
        Holder::parse(identity, &key.namespace).filter(|holder| holder.operation.same(gone))
    else {
        return Ok(());
    };
    let held = |until_hint| AcquireError::Held {
        lease: key.clone(),
        holder: identity.to_owned(),
        operation: Some(holder.operation.clone()),
        since: seen.acquire_time.clone(),
        until_hint,
    };
    if slot.live().is_some() {
        return Err(held(None));
    }
    let now = process.clock.now();
    let observation = slot.observe(Some(seen), now);
    if !protocol::may_clear(
        seen,
        &holder,
        manager.instance(),
        observation.as_ref(),
        now,
        &process.durations,
    ) {
        return Err(held(observation.and_then(|seen| {
            protocol::expires_in(&seen, now, &process.durations)
        })));
    }
    let unsettled = view.intents_of(gone).await?;
    if !unsettled.is_empty() {
        return Err(AcquireError::Unsettled(unsettled));
    }
    let write = protocol::clearing(seen, gone, &process.nonce(), &process.durations);
    match store_call::write(store, Some(seen), &write, process.durations.answer).await? {
        Written::Stored(_) => {
            info!(lease = %key, holder = identity, "cluster lock of an operation that is gone cleared");
            Ok(())
        }
        Written::Not(None, _) => Ok(()),
        Written::Not(Some(_), LeaseError::Conflict) => Err(LeaseError::Conflict.into()),
        Written::Not(Some(_), error) => Err(error.into()),
    }
}
