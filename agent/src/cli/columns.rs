//! A list as a table that people read and `awk` takes.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets::NOTHING};

/// A table that may grow: no frame, two spaces between columns, none at the end.
pub(super) struct Columns {
    header: Vec<&'static str>,
    /// The header is to be printed.
    is_due: bool,
    /// Of what was printed.
    widths: Vec<u16>,
}

impl Columns {
    pub(super) fn new(header: Vec<&'static str>) -> Self {
        Self { header, is_due: true, widths: Vec::new() }
    }

    /// More rows, below the header if there was none yet, and no narrower than those before.
    pub(super) fn rows(&mut self, rows: impl Iterator<Item = Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let is_headed = std::mem::take(&mut self.is_due);
        if is_headed {
            table.set_header(self.header.clone());
        }
        table.add_rows(rows);
        for (n, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if let Some(width) = self.widths.get(n) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width + 2)));
            }
        }
        let widths = table.column_max_content_widths();
        let before = std::mem::take(&mut self.widths);
        let wider = widths.iter().enumerate();
        self.widths =
            wider.map(|(n, width)| (*width).max(before.get(n).copied().unwrap_or(0))).collect();
        if table.row_count() == 0 && !is_headed {
            return String::new();
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_later_stand_below_the_others() {
        let mut columns = Columns::new(vec!["NAME", "N"]);
        let row = |name: &str| vec![name.to_owned(), "1".to_owned()];
        assert_eq!(columns.rows([row("web-0-long")].into_iter()), "NAME        N\nweb-0-long  1\n");
        assert_eq!(columns.rows([row("a")].into_iter()), "a           1\n");
        assert_eq!(columns.rows([].into_iter()), "");
    }
}
