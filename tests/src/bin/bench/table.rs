//! The table that a bench prints.

use std::fmt::Write as _;

/// One figure of ours beside the peer's.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// The peer's figure; `None` where it was not measured.
    pub peer: Option<f64>,
    /// Ours.
    pub ours: f64,
    /// The ratio, ours to the peer's, that is asked for at most; `None`: just to know.
    pub wanted: Option<f64>,
}

/// `rows` as aligned text, each with its ratio and whether that is what was asked for.
pub fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|r| r.what.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut text = format!(
        "{:width$}  {:>12}  {:>12}  {:>6}  {:>6}\n",
        "", "kubectl", "ichor", "ratio", "wanted"
    );
    for row in rows {
        let figure = |value: f64| match row.unit {
            "calls" => format!("{value:.0} {}", row.unit),
            _ => format!("{value:.2} {}", row.unit),
        };
        let peer = row.peer.map_or("-".to_owned(), figure);
        let ratio = row.peer.map(|peer| row.ours / peer);
        let _ = writeln!(
            text,
            "{:width$}  {peer:>12}  {:>12}  {:>6}  {:>6}{}",
            row.what,
            figure(row.ours),
            ratio.map_or("-".to_owned(), |r| format!("{r:.3}")),
            row.wanted.map_or("-".to_owned(), |w| format!("{w}")),
            match (ratio, row.wanted) {
                (Some(ratio), Some(wanted)) if ratio > wanted => "  missed",
                _ => "",
            }
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_what_is_wanted_is_called_missed() {
        let row = |ours| Row {
            what: "drain".to_owned(),
            unit: "s",
            peer: Some(40.0),
            ours,
            wanted: Some(0.25),
        };
        let text = render(&[row(8.0), row(11.0)]);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].contains("0.200") && !lines[1].contains("missed"),
            "{text}"
        );
        assert!(lines[2].ends_with("missed"), "{text}");
    }
}
