use ichor_rules::DirectReader;
use ichor_rules::reader::{FreshMachines, ReadError};

async fn fresh(reader: &DirectReader) -> Result<FreshMachines, ReadError> {
    reader.machines_of("default", "demo").await
}

fn main() {}
