//! One bed for all tests of a binary.

use std::sync::LazyLock;

use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::bed::{Bed, BedOptions};

/// A bed that is put up by the first test that asks for it, on a runtime that outlives
/// each of them. It goes with the process.
///
/// Tests share it, so each uses names of its own, and one that changes the weather holds
/// [`lock`](Self::lock) meanwhile.
pub struct SharedBed {
    runtime: LazyLock<Runtime>,
    bed: OnceCell<Bed>,
    options: fn() -> BedOptions,
    weather: tokio::sync::Mutex<()>,
}

impl SharedBed {
    /// A bed of these options, to be kept in a `static`.
    pub const fn new(options: fn() -> BedOptions) -> Self {
        Self {
            runtime: LazyLock::new(runtime),
            bed: OnceCell::const_new(),
            options,
            weather: tokio::sync::Mutex::const_new(()),
        }
    }

    /// Runs a test on the bed.
    ///
    /// # Panics
    ///
    /// Where the bed cannot be put up, and where the test does.
    #[allow(clippy::panic)] // It is the way in which a test fails.
    pub fn run<T>(&'static self, test: impl AsyncFnOnce(&'static Bed) -> T) -> T {
        let body = async {
            let bed = self
                .bed
                .get_or_try_init(|| Bed::start((self.options)()))
                .await;
            match bed {
                Ok(bed) => test(bed).await,
                Err(error) => panic!("the bed could not be put up: {error}"),
            }
        };
        self.runtime.block_on(body)
    }

    /// Held by a test while it changes the weather at the API server, which others would
    /// notice. It is fair again when the test ends, however it ends.
    pub async fn lock(&'static self) -> Weather {
        Weather {
            _alone: self.weather.lock().await,
            bed: &self.bed,
        }
    }
}

/// The right to change the weather of a [`SharedBed`].
pub struct Weather {
    _alone: tokio::sync::MutexGuard<'static, ()>,
    bed: &'static OnceCell<Bed>,
}

impl Drop for Weather {
    fn drop(&mut self) {
        if let Some(bed) = self.bed.get() {
            bed.proxy().faults().clear();
        }
    }
}

#[allow(clippy::panic)] // There is no test without a runtime.
fn runtime() -> Runtime {
    let built = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match built {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for the bed: {error}"),
    }
}
