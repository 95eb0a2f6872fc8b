use ichor_rules::ApprovedControlPlanes;

fn none() -> Option<ApprovedControlPlanes> {
    Option::default()
}

fn main() {}
