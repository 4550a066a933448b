//! How text looks: its width, and its colours.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    pub width: usize,
    pub color: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { width: 100, color: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paint {
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
    pub fn paint(&self, paint: Paint, text: &str) -> String {
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
