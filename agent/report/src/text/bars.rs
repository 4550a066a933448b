//! Bars drawn to scale with Unicode's block elements.

use crate::BootTime;

const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

pub struct Scale {
    began: u64,
    span: u64,
    cells: usize,
}

impl Scale {
    pub fn new(began: BootTime, ended: BootTime, cells: usize) -> Self {
        Self { began: began.0, span: ended.0.saturating_sub(began.0).max(1), cells }
    }

    /// A bar of exactly `cells` columns. It begins at a whole cell (there are no blocks that
    /// leave their left side empty) and ends at an eighth; the shortest stretch is one eighth, so
    /// that nothing that took time is invisible.
    pub fn bar(&self, from: BootTime, to: BootTime, hatched: bool) -> String {
        let total = self.cells as u64 * 8;
        let end = self.eighths(to).min(total);
        let first = (self.eighths(from) / 8).min(self.cells as u64 - 1);
        let len = end.saturating_sub(first * 8).max(1);
        let (full, rest) = ((len / 8) as usize, (len % 8) as usize);
        let mut bar = " ".repeat(first as usize);
        if hatched {
            bar.push_str(&"░".repeat(full + usize::from(rest > 0)));
        } else {
            bar.push_str(&"█".repeat(full));
            bar.extend(rest.checked_sub(1).map(|index| EIGHTHS[index]));
        }
        let used = first as usize + full + usize::from(rest > 0);
        bar.push_str(&" ".repeat(self.cells.saturating_sub(used)));
        bar
    }

    /// Eighths of a cell from the beginning to a moment, rounded.
    fn eighths(&self, at: BootTime) -> u64 {
        let offset = u128::from(at.0.saturating_sub(self.began));
        let total = self.cells as u128 * 8;
        let span = u128::from(self.span);
        u64::try_from((offset * total + span / 2) / span).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_as_wide_as_asked() {
        const TIMES: [u64; 6] = [0, 1, 99, 1 << 40, u64::MAX - 1, u64::MAX];
        for (began, ended) in TIMES.into_iter().flat_map(|began| TIMES.map(|ended| (began, ended)))
        {
            for (from, to) in TIMES.into_iter().flat_map(|from| TIMES.map(|to| (from, to))) {
                for cells in [1, 7, 199] {
                    let scale = Scale::new(BootTime(began), BootTime(ended), cells);
                    let bar = scale.bar(BootTime(from), BootTime(to), cells == 7);
                    assert_eq!(bar.chars().count(), cells, "{began}–{ended}: {from}–{to}");
                }
            }
        }
    }
}
