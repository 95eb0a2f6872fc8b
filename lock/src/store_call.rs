//! Calls to the store, each with an end.

use std::time::Duration;

use crate::{LeaseError, LeaseRecord, LeaseStore, LeaseWrite};

/// What a write did as far as can be told.
pub(crate) enum Written {
    /// It is stored; the record as stored.
    Stored(LeaseRecord),
    /// It was not (yet) applied; the Lease as it is now.
    Not(Option<LeaseRecord>, LeaseError),
}

pub(crate) async fn get(
    store: &dyn LeaseStore,
    limit: Duration,
) -> Result<Option<LeaseRecord>, LeaseError> {
    tokio::time::timeout(limit, store.get())
        .await
        .unwrap_or_else(|_| {
            Err(LeaseError::Other(format!(
                "no answer to a read within {limit:?}"
            )))
        })
}

async fn put(
    store: &dyn LeaseStore,
    on: Option<&LeaseRecord>,
    write: &LeaseWrite,
    limit: Duration,
) -> Result<LeaseRecord, LeaseError> {
    let call = async {
        match on {
            None => store.create(write).await,
            Some(record) => store.replace(&record.resource_version, write).await,
        }
    };
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        Err(LeaseError::Unknown(format!(
            "no answer to a write within {limit:?}"
        )))
    })
}

/// Writes on top of `on` (makes the Lease where that is `None`), and reads again where the answer
/// does not say what is there now (rule 5).
///
/// # Errors
/// [`LeaseError`] where nothing more can be told: not applied ([`LeaseError::Other`]), or
/// unknown because the second read failed too.
pub(crate) async fn write(
    store: &dyn LeaseStore,
    on: Option<&LeaseRecord>,
    write: &LeaseWrite,
    limit: Duration,
) -> Result<Written, LeaseError> {
    match put(store, on, write, limit).await {
        Ok(stored) => Ok(Written::Stored(stored)),
        Err(error @ LeaseError::Other(_)) => Err(error),
        Err(error) => match get(store, limit).await {
            Ok(Some(seen)) if crate::protocol::applied(Some(&seen), write) => {
                Ok(Written::Stored(seen))
            }
            Ok(seen) => Ok(Written::Not(seen, error)),
            Err(read) => Err(LeaseError::Unknown(format!(
                "{error}; reading it again failed too: {read}"
            ))),
        },
    }
}
