use ichor_api::TalosMachine;
use ichor_rules::Check;
use ichor_rules::deletion::{TargetHealth, declared_count};

fn ask(cached: &Vec<TalosMachine>) -> Check {
    declared_count(cached, "cp-1", 3, TargetHealth::Healthy)
}

fn main() {}
