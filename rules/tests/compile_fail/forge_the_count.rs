use ichor_rules::{ApprovedControlPlanes, DirectReader};

async fn ask(_: &DirectReader) -> usize {
    let counted = ApprovedControlPlanes { counted: vec!["cp-1".into()], target_counts: true };
    counted.n()
}

fn main() {}
