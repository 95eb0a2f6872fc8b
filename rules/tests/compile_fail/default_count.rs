use ichor_rules::ApprovedControlPlanes;

fn none() -> ApprovedControlPlanes {
    ApprovedControlPlanes::default()
}

fn main() {}
