//! Tables in kubectl's look: columns three blanks apart, no lines.

/// `rows` under `header`.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines = vec![header.iter().map(ToString::to_string).collect()];
    lines.extend_from_slice(rows);
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = lines.iter().filter_map(|row: &Vec<String>| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &lines {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_three_blanks_apart() {
        let rows = [vec!["cp-1".to_owned(), "true".to_owned()]];
        assert_eq!(
            super::table(&["NAME", "STARTED"], &rows),
            "NAME   STARTED\ncp-1   true\n"
        );
    }
}
