use ichor_rules::ApprovedControlPlanes;
use ichor_rules::count::{Basis, count};
use ichor_rules::reader::FreshMachines;

fn ask(fresh: &FreshMachines) -> ApprovedControlPlanes {
    count(fresh, "cp-1", Basis::Admission)
}

fn main() {}
