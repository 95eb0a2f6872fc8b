use ichor_rules::DirectReader;

fn writer(reader: &DirectReader) -> DirectReader {
    reader.clone()
}

fn main() {}
