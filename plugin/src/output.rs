//! `-o`: the same results for programs.

use serde::Serialize;

use crate::cli::Output;
use crate::error::Error;
use crate::io::Io;

/// Prints `value` as one JSON or YAML document.
pub fn document<T: Serialize>(io: &mut Io<'_>, output: Output, value: &T) -> Result<(), Error> {
    let failed = |what: String| Error::Failed {
        what,
        next: "This is a fault of the plugin: please report it.".to_owned(),
    };
    let text = match output {
        Output::Yaml => serde_saphyr::to_string(value)
            .map_err(|error| failed(format!("failed to write YAML: {error}")))?,
        _ => serde_json::to_string_pretty(value)
            .map_err(|error| failed(format!("failed to write JSON: {error}")))?,
    };
    io.out(&text);
    if !text.ends_with('\n') {
        io.out("\n");
    }
    Ok(())
}

/// Refuses forms that a command has no answer in.
pub fn only(output: Option<Output>, allowed: &[Output], command: &str) -> Result<(), Error> {
    match output {
        Some(output) if !allowed.contains(&output) => Err(Error::Usage(format!(
            "{command} has no output form {:?}: use {}",
            output.as_str(),
            allowed
                .iter()
                .map(|o| o.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
        _ => Ok(()),
    }
}
