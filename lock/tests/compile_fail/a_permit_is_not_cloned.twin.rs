//! One permit, one call.
use ichor_lock::Permit;

type Shared<'l> = &'l Permit<'l>;

fn two<T: Clone>(of: &T) -> (T, T) {
    (of.clone(), of.clone())
}

fn main() {
    let _ = two::<Shared<'_>>;
}
