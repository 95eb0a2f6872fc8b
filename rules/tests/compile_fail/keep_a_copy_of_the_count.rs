use ichor_rules::ApprovedControlPlanes;

fn twice(counted: &ApprovedControlPlanes) -> (ApprovedControlPlanes, usize) {
    (counted.clone(), counted.n())
}

fn owned<T>(value: T) -> T {
    value
}

fn later(counted: ApprovedControlPlanes) -> [ApprovedControlPlanes; 2] {
    [owned(counted), counted]
}

fn main() {}
