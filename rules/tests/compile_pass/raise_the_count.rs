use ichor_rules::ApprovedControlPlanes;

fn raise(counted: &mut ApprovedControlPlanes) -> usize {
    counted.names().to_vec().push("cp-9".to_owned());
    counted.n()
}

fn main() {}
