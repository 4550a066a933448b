//! What a benchmark prints, and the statistics in it.

use comfy_table::{CellAlignment, Table, presets::NOTHING};

/// A table with the first column to the left and numbers to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// A number with about three significant digits.
pub(crate) fn shown(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The smallest of the values that `percent` of them do not exceed: always one that was measured. 0 of none.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let many: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&many, percent)), [100.0, 198.0, 200.0]);
        assert_eq!(percentile(&[7.0], 50), 7.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }
}
