//! The log: what is written to it, and in which form.
//!
//! Libraries log what they cannot read: kube-rs the whole answer of an apiserver, with the environments
//! of all pods in it. That is not ours to pass on. So a level is that of coroner's own lines; a library's
//! are written only where a directive names it.

pub mod lines;

use crate::printable::{json, shown};
use std::io::{self, Write};
use tracing::Dispatch;
use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
    fmt::MakeWriter,
    util::SubscriberInitExt as _,
};

const OWN: &str = "coroner";

/// The filter that directives ask for: `info`, `debug,kube_client=warn`, `coroner::sources::cri=debug`.
pub fn filter(directives: &str) -> Result<EnvFilter, ParseError> {
    let own = directives.split(',').map(str::trim).filter(|one| !one.is_empty()).map(of_own);
    let own: Vec<_> = own.collect();
    EnvFilter::try_new(if own.is_empty() { of_own("error") } else { own.join(",") })
}

/// A directive that names no target, as one of ours.
fn of_own(directive: &str) -> String {
    let is_level = directive.parse::<LevelFilter>().is_ok();
    match directive.strip_prefix('[') {
        _ if is_level => format!("{OWN}={directive}"),
        Some(_) => format!("{OWN}{directive}"),
        None => directive.to_owned(),
    }
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes the log to stderr from now on, for the whole process.
pub fn start(directives: &str, form: LogFormat) -> Result<(), ParseError> {
    dispatch(filter(directives)?, form, io::stderr).init();
    Ok(())
}

fn dispatch<W>(filter: EnvFilter, form: LogFormat, to: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Shown { to, form })
        .log_internal_errors(false); // a closed stderr is no reason to panic
    match form {
        LogFormat::Json => log.json().flatten_event(true).into(),
        LogFormat::Text => log.with_ansi(false).into(),
    }
}

/// Writes lines with [what is hidden](crate::printable) as escapes, whoever put it into them.
struct Shown<W> {
    to: W,
    form: LogFormat,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Shown<W> {
    type Writer = Shown<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Shown { to: self.to.make_writer(), form: self.form }
    }
}

impl<W: Write> Write for Shown<W> {
    /// Takes a whole line at once, as tracing-subscriber writes them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.to.write_all(line(&text, self.form).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn line(text: &str, form: LogFormat) -> String {
    let (text, end) = match text.strip_suffix('\n') {
        Some(line) => (line, "\n"),
        None => (text, ""),
    };
    let safe = match form {
        LogFormat::Json => json(text),
        LogFormat::Text => shown(text),
    };
    safe.into_owned() + end
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::printable::is_hidden;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct WrittenLog(Arc<Mutex<Vec<u8>>>);

    impl Write for WrittenLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged at the level of `run`, as text.
    pub(crate) fn logged(log: impl FnOnce()) -> String {
        logged_by("info", LogFormat::Text, log)
    }

    pub(crate) fn logged_by(directives: &str, form: LogFormat, log: impl FnOnce()) -> String {
        let text = WrittenLog::default();
        let to = text.clone();
        let dispatch = dispatch(filter(directives).unwrap(), form, move || to.clone());
        tracing::dispatcher::with_default(&dispatch, log);
        String::from_utf8(std::mem::take(&mut *text.0.lock().unwrap())).unwrap()
    }

    #[test]
    fn a_library_is_heard_only_by_its_name() {
        let log = || {
            tracing::error!(target: "kube_client::client", "theirs");
            tracing::trace!(target: "kube_client::client", "theirs");
            tracing::trace!(target: "coroner::termination", "ours");
            tracing::error!(target: "coroner_core::engine", "ours");
        };
        for (directives, theirs, ours) in [
            ("trace", 0, 2),
            ("TRACE", 0, 2),
            ("5", 0, 2),
            ("info", 0, 1),
            ("off", 0, 0),
            ("coroner=trace", 0, 2),
            ("info,coroner::termination=trace", 0, 2),
            (" warn , kube_client=error ", 1, 1),
            ("kube_client", 2, 0),
            ("[{answer}]=trace", 0, 0),
            ("", 0, 1),
        ] {
            let text = logged_by(directives, LogFormat::Text, log);
            let counted = (text.matches("theirs").count(), text.matches("ours").count());
            assert_eq!(counted, (theirs, ours), "{directives}");
        }
        assert!(filter("coroner=loud").is_err());
    }

    #[test]
    fn no_line_hides_anything() {
        let odd = "a\u{1b}[2J\u{9b}b\u{202e}c\u{e0041}\nforged";
        let log = || tracing::error!(target: "coroner", display = %odd, text = odd, "{odd}");
        let text = logged_by("info", LogFormat::Text, log);
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.trim_end().contains(is_hidden), "{text:?}");
        let text = logged_by("info", LogFormat::Json, log);
        assert!(!text.trim_end().contains(is_hidden), "{text:?}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["text"], odd);
    }
}
