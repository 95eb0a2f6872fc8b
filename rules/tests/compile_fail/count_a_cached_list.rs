use ichor_api::TalosMachine;
use ichor_rules::ApprovedControlPlanes;
use ichor_rules::count::{Basis, count};

fn ask(cached: &Vec<TalosMachine>) -> ApprovedControlPlanes {
    count(cached, "cp-1", Basis::Admission)
}

fn main() {}
