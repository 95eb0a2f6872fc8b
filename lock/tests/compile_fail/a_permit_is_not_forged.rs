//! The fields of a permit are private.
use ichor_lock::Permit;

struct Own {
    step: String,
}

fn main() {
    let _ = Permit {
        step: String::new(),
    };
    let _ = (
        Own {
            step: String::new(),
        }
        .step,
        size_of::<Permit<'_>>(),
    );
}
