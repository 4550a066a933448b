//! coroner as a library. Data goes one way: [`sources`] fetch and convert, the core (`coroner_core`) decides,
//! [`store`] keeps what was decided, [`outputs`] show it. [`app`] wires them; the binary is a thin shell over
//! [`cli`].

pub mod app;
pub mod cli;
pub mod config;
pub mod linux;
pub mod outputs;
pub mod sources;
pub mod store;

pub use coroner_report::printable;

/// An error and its causes on one line, each once: many errors have their cause in their own text.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for more in anyhow::Chain::new(error).skip(1).map(ToString::to_string) {
        if !text.contains(&more) {
            text = text + ": " + &more;
        }
    }
    text
}
