//! How text looks: its width, and colours where the terminal has them.

use std::io::IsTerminal;

/// Whether output to this has colours: a terminal that has them, and NO_COLOR is not set.
pub fn has_colors(to: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    to.is_terminal() && !dumb() && !set("NO_COLOR")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    pub width: usize,
    pub color: bool,
}

/// Where nobody says how wide it is.
const WIDTH: usize = 100;

impl Default for Style {
    fn default() -> Self {
        Self { width: WIDTH, color: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Paint {
    Strong,
    Good,
    Doubtful,
    Bad,
    Faint,
    /// Time that the workload itself spent.
    Own,
    /// Time that the kubelet, the runtime or the apiserver spent.
    System,
}

impl Style {
    /// For stdout as it is.
    pub fn for_stdout() -> Self {
        let stdout = std::io::stdout();
        let color = has_colors(&stdout);
        let width = match rustix::termios::tcgetwinsize(&stdout) {
            Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).min(140),
            _ => WIDTH,
        };
        Self { width, color }
    }

    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            _ if !self.color => return text.to_owned(),
            Paint::Strong => "1",
            Paint::Good => "32",
            Paint::Doubtful => "33",
            Paint::Bad => "31",
            Paint::Faint => "2",
            Paint::Own => "36",
            Paint::System => "34",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
