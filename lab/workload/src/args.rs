//! The command line: one behaviour, then its flags.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

/// Terminates in every way a container can. Durations are such as 250ms, 2s, 1h.
#[derive(Parser, Debug)]
#[command(name = "workload")]
pub(crate) struct Workload {
    #[command(subcommand)]
    pub(crate) behaviour: Behaviour,
}

/// How long it works, and what it then exits with.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Work {
    #[arg(long = "for", value_parser = duration, default_value = "0ms")]
    pub(crate) time: Duration,
    #[arg(long, default_value_t = 0)]
    pub(crate) exit: u8,
}

/// What a server does on SIGTERM.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Stop {
    #[arg(long = "on-stop", default_value = "exit")]
    pub(crate) on: OnStop,
    /// How long it goes on after that; a drain ends before, when it is done
    #[arg(long = "for", value_parser = duration)]
    pub(crate) after: Option<Duration>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnStop {
    /// Exits at once, with all connections open
    Exit,
    /// Closes its listeners and idle connections, answers what was asked, and exits
    Drain,
    /// Closes its listeners, and goes on with the connections that it has
    Close,
    /// Goes on
    Serve,
}

/// Where a server listens; at `::` for IPv4, too.
#[derive(Args, Clone, Debug)]
pub(crate) struct Door {
    #[arg(long, default_value_t = Ipv6Addr::UNSPECIFIED.into())]
    pub(crate) at: IpAddr,
    #[arg(long, required = true, value_delimiter = ',')]
    pub(crate) ports: Vec<u16>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Behaviour {
    /// The sandbox's init: exits on SIGTERM or SIGINT, reaps orphans
    Pause,
    /// Handles a signal, works and exits
    Handle {
        /// The signal's number
        #[arg(long, default_value_t = libc::SIGTERM)]
        on: i32,
        #[command(flatten)]
        work: Work,
    },
    /// Handles SIGTERM, and never exits
    Overrun,
    /// Has no handler: ignored by the kernel as PID 1, else the default action
    #[command(alias = "ignore")]
    Default,
    /// Sets SIGTERM to SIG_IGN
    SigIgn,
    /// Blocks SIGTERM and never takes it
    Block,
    /// Blocks SIGTERM in the leading thread, and not in another one
    BlockLeader,
    /// Takes SIGTERM by sigwait(3)
    Sigwait(Work),
    /// Takes SIGTERM by signalfd(2)
    Signalfd(Work),
    /// Handles SIGTERM, restores its default action, raises it on itself and exits with 2 if it survives, as Go's runtime
    GoStyle(Work),
    /// Handles SIGTERM; the leading thread exits at once, another one works on
    LeaderExits(Work),
    /// Answers HTTP, each request after some time; handles SIGTERM and exits at once
    Serve {
        #[arg(long)]
        port: u16,
        #[command(flatten)]
        work: Work,
    },
    /// Answers lines over TCP with the same line
    Listen {
        #[command(flatten)]
        door: Door,
        /// From a line to its answer
        #[arg(long, value_parser = duration, default_value = "0ms")]
        work: Duration,
        #[command(flatten)]
        stop: Stop,
    },
    /// Hands connections on to a port of 127.0.0.1, as a sidecar
    Relay {
        #[command(flatten)]
        door: Door,
        #[arg(long)]
        to: u16,
        #[command(flatten)]
        stop: Stop,
    },
    /// Handles SIGTERM, and from then on calls the apiserver forever
    Call {
        #[arg(long, value_parser = duration)]
        every: Duration,
    },
    /// As handle, with children that nothing signals
    Spawn {
        #[arg(long)]
        children: u32,
        #[command(flatten)]
        work: Work,
    },
    /// Runs a child of this behaviour and waits for it, without forwarding signals (sh -c 'app; true')
    Shell {
        #[arg(long, required = true, num_args = 1.., allow_hyphen_values = true)]
        child: Vec<String>,
    },
    /// A real segmentation fault
    Crash {
        #[arg(long, value_parser = duration)]
        after: Duration,
    },
    /// Takes a name that is no UTF-8, and sends itself SIGHUP forever
    Flood,
    /// Touches so much memory, then sleeps
    Oom {
        #[arg(long, value_parser = duration)]
        after: Duration,
        #[arg(long)]
        mib: usize,
    },
    /// Works and exits
    #[command(alias = "sleep")]
    Job(Work),
    /// Sends a signal to a process, as a hook does, works and exits
    Kill {
        #[arg(long)]
        pid: i32,
        /// The signal's number
        #[arg(long, default_value_t = libc::SIGTERM)]
        on: i32,
        #[command(flatten)]
        work: Work,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let ms = units
        .into_iter()
        .find_map(|(unit, ms)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(ms));
    ms.map(Duration::from_millis).ok_or_else(|| "such as 250ms, 2s or 1h".to_owned())
}
