//! `-w`: follows objects by list and watch, redraws in place on a terminal, and prints a
//! line only where it changed on a pipe.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fmt::Write as _;

use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use serde::de::DeserializeOwned;

use crate::age::Clock;
use crate::error::{Error, Request, chain};
use crate::io::{Io, Size};
use crate::session::Session;

/// What a watch tells.
#[derive(Debug)]
pub enum Change<K> {
    /// These are all there are, now.
    All(Vec<K>),
    /// This one is new or changed.
    Applied(K),
    /// This one is gone.
    Gone(K),
    /// The watch broke off and is taken up again; why.
    Trouble(String),
}

impl<K> Change<K> {
    /// Why the watch broke off, where that is what it tells.
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Trouble(why) => Some(why),
            _ => None,
        }
    }
}

/// Lists and watches; lists anew where the watch cannot be taken up, without a gap.
/// It ends only where the caller may not watch.
pub fn changes<K>(
    api: Api<K>,
    config: watcher::Config,
    resource: &'static str,
    namespace: Option<&str>,
) -> impl Stream<Item = Result<Change<K>, Error>> + use<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let list = Request::many("list", resource, namespace);
    let watch = Request::many("watch", resource, namespace);
    let mut listed: Vec<K> = Vec::new();
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            let change = match event {
                Ok(watcher::Event::Init) => {
                    listed.clear();
                    None
                }
                Ok(watcher::Event::InitApply(object)) => {
                    listed.push(object);
                    None
                }
                Ok(watcher::Event::InitDone) => Some(Ok(Change::All(std::mem::take(&mut listed)))),
                Ok(watcher::Event::Apply(object)) => Some(Ok(Change::Applied(object))),
                Ok(watcher::Event::Delete(object)) => Some(Ok(Change::Gone(object))),
                Err(error) => Some(trouble(error, &list, &watch)),
            };
            futures::future::ready(change)
        })
}

/// A right that is missing ends it; everything else is tried again.
fn trouble<K>(error: watcher::Error, list: &Request, watch: &Request) -> Result<Change<K>, Error> {
    let told = chain(&error);
    let (request, source) = match error {
        watcher::Error::InitialListFailed(source) => (list, source),
        watcher::Error::WatchStartFailed(source) | watcher::Error::WatchFailed(source) => {
            (watch, source)
        }
        _ => return Ok(Change::Trouble(told)),
    };
    let error = Error::api(request.clone(), source);
    if error.is_forbidden() || error.is_not_found() {
        Err(error)
    } else {
        Ok(Change::Trouble(told))
    }
}

/// What to show after a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// Not everything has been listed yet.
    NotYet,
    /// These lines.
    Show(Vec<String>),
    /// These lines, and that is the end of it.
    End(Vec<String>),
}

/// Where frames are shown.
#[derive(Debug, Default)]
struct Screen {
    drawn: usize,
    shown: BTreeSet<String>,
    troubles: BTreeSet<String>,
}

impl Screen {
    fn show(&mut self, io: &mut Io<'_>, lines: &[String]) {
        if !io.out_is_terminal {
            io.out_lines(
                lines
                    .iter()
                    .filter(|line| !line.is_empty() && !self.shown.contains(*line)),
            );
            self.shown = lines.iter().cloned().collect();
            return;
        }
        let lines = fit(lines, (io.size)());
        let mut text = String::new();
        if self.drawn > 0 {
            // Up to where the last frame began, and clear from there.
            let _ = write!(text, "\x1b[{}F\x1b[J", self.drawn);
        }
        for line in &lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.len();
        io.out(&text);
    }
}

/// Lines as they lie on the terminal: broken at its width, and no more than it is high,
/// so that going back up by their number goes back to the first.
fn fit(lines: &[String], size: Option<Size>) -> Vec<String> {
    let Some(size) = size else {
        return lines.to_vec();
    };
    let width = size.width.max(1);
    let mut broken = Vec::new();
    for line in lines {
        let characters: Vec<char> = line.chars().collect();
        if characters.is_empty() {
            broken.push(String::new());
        }
        broken.extend(
            characters
                .chunks(width)
                .map(|c| c.iter().collect::<String>()),
        );
    }
    let height = size.height.saturating_sub(1).max(1);
    if broken.len() > height {
        let hidden = broken.len() - height + 1;
        broken.truncate(height - 1);
        broken.push(
            format!("... {hidden} more lines")
                .chars()
                .take(width)
                .collect(),
        );
    }
    broken
}

/// Follows `changes` until a frame ends it, nobody reads any more, or Ctrl-C.
///
/// `frame` is told each change, and with `None` that only time has passed.
pub async fn run<C>(
    session: &Session,
    io: &mut Io<'_>,
    changes: impl Stream<Item = Result<Change<C>, Error>>,
    mut frame: impl FnMut(Option<Change<C>>, Clock) -> Frame,
) -> Result<(), Error> {
    let mut changes = std::pin::pin!(changes);
    let mut screen = Screen::default();
    let mut tick = tokio::time::interval(std::time::Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let clock = |io: &Io<'_>| {
        let clock = session.clock();
        if io.out_is_terminal {
            clock
        } else {
            clock.for_lines()
        }
    };
    loop {
        let now = clock(io);
        let mut next = tokio::select! {
            biased;
            _ = &mut interrupt => return Err(Error::Interrupted),
            change = changes.next() => match change {
                None => return Ok(()),
                Some(change) => take(io, &mut screen, change?, &mut frame, now),
            },
            _ = tick.tick(), if io.out_is_terminal => frame(None, now),
        };
        // Whatever else is there already belongs into the same frame.
        while !matches!(next, Frame::End(_)) {
            match changes.next().now_or_never() {
                Some(Some(change)) => next = take(io, &mut screen, change?, &mut frame, now),
                _ => break,
            }
        }
        session.tell(io);
        match next {
            Frame::NotYet => {}
            Frame::Show(lines) => screen.show(io, &lines),
            Frame::End(lines) => {
                screen.show(io, &lines);
                return Ok(());
            }
        }
        if io.closed() {
            return Ok(());
        }
    }
}

fn take<C>(
    io: &mut Io<'_>,
    screen: &mut Screen,
    change: Change<C>,
    frame: &mut impl FnMut(Option<Change<C>>, Clock) -> Frame,
    now: Clock,
) -> Frame {
    if let Change::Trouble(why) = &change {
        // Said once, not at each try: the last frame stays what is known.
        if screen.troubles.insert(why.clone()) {
            io.note(&format!("the watch broke off and is taken up again: {why}"));
            screen.drawn = 0;
        }
        return frame(None, now);
    }
    frame(Some(change), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn on_a_pipe_only_lines_that_changed_are_printed() {
        let mut out = Vec::new();
        let mut io = Io::new(&mut out, std::io::sink(), std::io::empty());
        let mut screen = Screen::default();
        screen.show(&mut io, &lines("head\n\na 1\nb 1"));
        screen.show(&mut io, &lines("head\n\na 1\nb 2"));
        screen.show(&mut io, &lines("head\n\na 1\nb 2"));
        screen.show(&mut io, &lines("head\n\na 1\nb 1"));
        drop(io);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "head\na 1\nb 1\nb 2\nb 1\n"
        );
    }

    #[test]
    fn on_a_terminal_each_frame_takes_the_place_of_the_last() {
        let mut out = Vec::new();
        let mut io = Io::new(&mut out, std::io::sink(), std::io::empty());
        io.out_is_terminal = true;
        io.size = || {
            Some(Size {
                height: 24,
                width: 4,
            })
        };
        let mut screen = Screen::default();
        screen.show(&mut io, &lines("abcdef\n\nx"));
        screen.show(&mut io, &lines("y"));
        drop(io);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "abcd\nef\n\nx\n\x1b[4F\x1b[Jy\n"
        );
    }

    #[test]
    fn a_frame_never_scrolls_the_terminal() {
        let size = Some(Size {
            height: 4,
            width: 80,
        });
        assert_eq!(
            fit(&lines("1\n2\n3\n4\n5"), size),
            ["1", "2", "... 3 more lines"]
        );
        assert_eq!(fit(&lines("1\n2\n3"), size).len(), 3);
    }
}
