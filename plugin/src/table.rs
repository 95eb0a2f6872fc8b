//! Tables as kubectl draws them: upper-case headers, three blanks, no borders.

const GAP: &str = "   ";

/// Rows under headers, as wide as their widest cell.
#[derive(Clone, Debug, Default)]
pub struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headers.
    pub fn new(headers: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            headers: headers.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell is written `<none>`, as kubectl does.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| {
                    if cell.is_empty() {
                        "<none>".to_owned()
                    } else {
                        cell
                    }
                })
                .collect(),
        );
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table's lines. The last column is not padded.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.headers.len();
        let mut widths: Vec<usize> = self.headers.iter().map(|h| h.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (column, cell) in cells.enumerate() {
                line.push_str(cell);
                if column + 1 < columns {
                    let pad = widths
                        .get(column)
                        .map_or(0, |w| w.saturating_sub(cell.chars().count()));
                    line.extend(std::iter::repeat_n(' ', pad));
                    line.push_str(GAP);
                }
            }
            line
        };
        std::iter::once(line(&mut self.headers.iter().copied()))
            .chain(
                self.rows
                    .iter()
                    .map(|row| line(&mut row.iter().map(String::as_str))),
            )
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_three_blanks_apart_and_the_last_is_not_padded() {
        let mut table = Table::new(["NAME", "READY", "AGE"]);
        table.row(["cp-1".into(), "True".into(), "5m".into()]);
        table.row(["worker-10".into(), String::new(), "12d".into()]);
        assert_eq!(
            table.lines(),
            [
                "NAME        READY    AGE",
                "cp-1        True     5m",
                "worker-10   <none>   12d",
            ]
        );
    }
}
