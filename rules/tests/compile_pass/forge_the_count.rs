use ichor_rules::count::Basis;
use ichor_rules::{DirectReader, count_approved};

async fn ask(reader: &DirectReader) -> usize {
    let counted = count_approved(reader, "default", "demo", "cp-1", Basis::Admission).await;
    counted.map_or(0, |counted| counted.n())
}

fn main() {}
