//! What the other tools print: which of the load's events each line tells of. Pure.

use super::load;

/// What was told of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ToolReport {
    pub(super) signals: u64,
    pub(super) exits: u64,
    /// Events that the tool itself says it has lost, of whatever kind.
    pub(super) lost: u64,
}

impl ToolReport {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            signals: self.signals + other.signals,
            exits: self.exits + other.exits,
            lost: self.lost + other.lost,
        }
    }
}

/// Who has printed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// `TIME PID COMM SIG TPID RESULT`
    Sigsnoop,
    /// `PCOMM PID PPID TID AGE(s) EXIT_CODE`
    Exitsnoop,
    /// Our script's: see [`SCRIPT`].
    Bpftrace,
}

/// What sigsnoop and exitsnoop tell, without their times and ages.
pub(super) const SCRIPT: &str = r#"
tracepoint:signal:signal_generate {
    printf("signal %d %s %d %d %d\n", pid, comm, args->sig, args->pid, args->result);
}
tracepoint:sched:sched_process_exit /pid == tid/ {
    printf("exit %d %s\n", pid, comm);
}"#;

impl Format {
    /// Adds what the line tells. The signals of the load are SIGHUP and SIGTERM; the SIGCHLDs that its
    /// exits make are left out.
    pub(super) fn read(self, line: &str, told: &mut ToolReport) {
        if let Some(lost) = lost(line) {
            told.lost += lost;
            return;
        }
        let mut fields = line.split_ascii_whitespace();
        let (name, signal) = match self {
            Self::Sigsnoop => (fields.nth(2), Some(fields.next())),
            Self::Exitsnoop => (fields.next(), None),
            Self::Bpftrace => match fields.next() {
                Some("signal") => (fields.nth(1), Some(fields.next())),
                Some("exit") => (fields.nth(1), None),
                _ => return,
            },
        };
        if name != Some(load::NAME) {
            return;
        }
        match signal {
            None => told.exits += 1,
            Some(Some("1" | "15")) => told.signals += 1,
            Some(_) => {}
        }
    }
}

/// `Lost 12 events` (bpftrace), `lost 12 events on CPU #1` (libbpf-tools).
fn lost(line: &str) -> Option<u64> {
    let count = line.strip_prefix("Lost ").or_else(|| line.strip_prefix("lost "))?;
    let (count, rest) = count.split_once(' ')?;
    rest.starts_with("events").then(|| count.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: Format, lines: &[&str]) -> (u64, u64, u64) {
        let mut told = ToolReport::default();
        lines.iter().for_each(|line| format.read(line, &mut told));
        (told.signals, told.exits, told.lost)
    }

    #[test]
    fn the_loads_events_are_told_from_others() {
        let lines = [
            "TIME     PID     COMM             SIG       TPID    RESULT",
            "17:01:30 20956   storm            1         20956   0     ",
            "17:01:30 20956   storm            15        21082   2     ",
            "17:01:30 20956   storm            17        21082   1     ",
            "17:01:30 20956   bash             1         21082   0     ",
            "lost 42 events on CPU #1",
            "",
        ];
        assert_eq!(read(Format::Sigsnoop, &lines), (2, 0, 42));
        let lines = [
            "PCOMM            PID     PPID    TID     AGE(s)  EXIT_CODE",
            "storm            21333   18572   21333   1.17    0",
            "sleep            21396   21391   21396   1.01    0",
        ];
        assert_eq!(read(Format::Exitsnoop, &lines), (0, 1, 0));
        let lines = [
            "Attaching 2 probes...",
            "signal 7 storm 1 7 0",
            "signal 7 storm 17 7 1",
            "exit 9 storm",
            "exit 9 sh",
            "Lost 5 events",
            "signal",
        ];
        assert_eq!(read(Format::Bpftrace, &lines), (1, 1, 5));
    }

    #[test]
    fn lost_is_said_in_two_ways() {
        assert_eq!(lost("Lost 7 events"), Some(7));
        assert_eq!(lost("lost 7 events on CPU #0"), Some(7));
        for other in ["lost", "lost many events", "lost+found 1 2", "Lost 7 lives"] {
            assert_eq!(lost(other), None, "{other}");
        }
    }
}
