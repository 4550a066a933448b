//! A list as a table that people read and `awk` takes.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

/// A header, and a line each row: no frame, two spaces between columns, none at the end.
pub(super) fn columns(header: Vec<&str>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
