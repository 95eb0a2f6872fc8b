use ichor_api::TalosMachine;
use ichor_rules::reader::FreshMachines;

fn fresh(cached: Vec<TalosMachine>) -> FreshMachines {
    FreshMachines(cached)
}

fn main() {}
