//! The text forms of a report (`coroner_report::text`), and how they look on this terminal.

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

pub use coroner_report::text::*;

use std::io::IsTerminal;

/// Whether output to this has colours: a terminal that has them, and NO_COLOR is not set.
pub fn has_colors(to: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    to.is_terminal() && !dumb() && !set("NO_COLOR")
}

/// For stdout as it is.
pub fn stdout_style() -> Style {
    let stdout = std::io::stdout();
    let width = match rustix::termios::tcgetwinsize(&stdout) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).min(140),
        _ => Style::default().width,
    };
    Style { width, color: has_colors(&stdout) }
}
