//! What the program is given: its environment and its three streams. Nothing below
//! reads the process directly, so a test can stand in for it.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// The environment as the program sees it.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
}

impl Env {
    /// The process's own. Variables that are no Unicode are not ours to read.
    pub fn from_process() -> Self {
        Self {
            vars: std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        }
    }

    /// A variable, unless it is unset or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.vars
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The home folder.
    pub fn home(&self) -> Option<PathBuf> {
        let name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        self.get(name).map(PathBuf::from)
    }
}

/// Height and width of a terminal, in lines and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// The three streams, and which of them are terminals.
pub struct Io<'a> {
    /// Results.
    out: Box<dyn Write + 'a>,
    /// Progress and notes.
    err: Box<dyn Write + 'a>,
    /// Answers to questions.
    input: Box<dyn BufRead + 'a>,
    /// Whether results go to a terminal.
    pub out_is_terminal: bool,
    /// Whether notes go to a terminal.
    pub err_is_terminal: bool,
    /// Whether a person can answer.
    pub in_is_terminal: bool,
    /// The size of the terminal that results go to.
    pub size: fn() -> Option<Size>,
    closed: bool,
}

impl std::fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io")
            .field("out_is_terminal", &self.out_is_terminal)
            .field("in_is_terminal", &self.in_is_terminal)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl<'a> Io<'a> {
    /// Streams of one's own, none of which is a terminal.
    pub fn new(out: impl Write + 'a, err: impl Write + 'a, input: impl BufRead + 'a) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            input: Box::new(input),
            out_is_terminal: false,
            err_is_terminal: false,
            in_is_terminal: false,
            size: || None,
            closed: false,
        }
    }

    /// The process's own streams.
    pub fn from_process() -> Io<'static> {
        use std::io::IsTerminal as _;
        let mut io = Io::new(
            std::io::stdout(),
            std::io::stderr(),
            std::io::BufReader::new(std::io::stdin()),
        );
        io.out_is_terminal = std::io::stdout().is_terminal();
        io.err_is_terminal = std::io::stderr().is_terminal();
        io.in_is_terminal = std::io::stdin().is_terminal();
        io.size = terminal_size;
        io
    }

    /// Whether nobody reads our results any more (`… | head`): a follower then ends.
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// Writes results. Once nobody reads them this does nothing, quietly: the
    /// command's own work and exit code do not depend on its reader.
    pub fn out(&mut self, text: &str) {
        if self.closed {
            return;
        }
        let written = self
            .out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush());
        if written.is_err() {
            self.closed = true;
        }
    }

    /// Writes lines of results.
    pub fn out_lines<S: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = S>) {
        let mut text = String::new();
        for line in lines {
            text.push_str(line.as_ref().trim_end());
            text.push('\n');
        }
        self.out(&text);
    }

    /// Writes a note for the person, one line or several.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.err, "{text}");
        let _ = self.err.flush();
    }

    /// Asks on the error stream and reads a line. `None`: no answer is to be had.
    pub fn ask(&mut self, question: &str) -> Option<String> {
        let _ = write!(self.err, "{question}");
        let _ = self.err.flush();
        let mut line = String::new();
        match self.input.read_line(&mut line) {
            Ok(read) if read > 0 => Some(line.trim().to_owned()),
            _ => None,
        }
    }
}

#[cfg(unix)]
fn terminal_size() -> Option<Size> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then(|| Size {
        height: size.ws_row.into(),
        width: size.ws_col.into(),
    })
}

#[cfg(not(unix))]
fn terminal_size() -> Option<Size> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let mut err = Vec::new();
        let mut io = Io::new(Closed, &mut err, std::io::empty());
        io.out("one\n");
        io.out("two\n");
        assert!(io.closed());
        drop(io);
        assert!(err.is_empty());
    }

    #[test]
    fn no_answer_is_told_from_an_empty_one() {
        let mut io = Io::new(std::io::sink(), std::io::sink(), &b"\n"[..]);
        assert_eq!(io.ask("? "), Some(String::new()));
        assert_eq!(io.ask("? "), None);
    }
}
