//! How text looks: its width, and colours where the terminal has them.

use clap::ValueEnum;
use std::{io::IsTerminal, sync::OnceLock};

/// When to use colours.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ColorChoice {
    /// If the output is a terminal that has them, and NO_COLOR is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What `--color` says: one choice for the whole process.
static COLOR: OnceLock<ColorChoice> = OnceLock::new();

impl ColorChoice {
    /// Whether output to this gets colours.
    pub fn applies_to(self, to: &impl IsTerminal) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match self {
            Self::Auto => to.is_terminal() && !dumb() && !set("NO_COLOR"),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// How a report looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns to fill.
    pub width: usize,
    /// Colours.
    pub color: bool,
}

/// Where nobody says how wide it is.
const WIDTH: usize = 100;

impl Default for Style {
    /// For a file: no colours.
    fn default() -> Self {
        Self { width: WIDTH, color: false }
    }
}

/// What a text is, which decides its colour.
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
    /// Sets when reports have colours.
    pub fn choose(color: ColorChoice) {
        let _ = COLOR.set(color); // chosen already
    }

    /// For stdout as it is: its width, and colours as [`Style::choose`] says.
    pub fn for_stdout() -> Self {
        let stdout = std::io::stdout();
        let color = COLOR.get().copied().unwrap_or_default().applies_to(&stdout);
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
