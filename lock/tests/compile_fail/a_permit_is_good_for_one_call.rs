//! Beginning a call uses the permit up.
use ichor_lock::Permit;

fn call(permit: Permit<'_>) {
    let _ = permit.begin();
    let _ = permit.begin();
}

fn main() {
    let _ = call;
}
