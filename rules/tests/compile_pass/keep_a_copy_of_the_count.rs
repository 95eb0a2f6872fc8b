use ichor_rules::ApprovedControlPlanes;

fn twice(counted: &ApprovedControlPlanes) -> (&ApprovedControlPlanes, usize) {
    (counted, counted.n())
}

fn owned<T>(value: T) -> T {
    value
}

fn later(counted: ApprovedControlPlanes) -> [ApprovedControlPlanes; 1] {
    [owned(counted)]
}

fn main() {}
