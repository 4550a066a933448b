//! The command line: one sub-command, then flags of that sub-command. Parsed by hand, so that the
//! image's only binary stays small and starts at once.

mod flags;

use crate::listen::{Door, Manner, StopBehaviour};
use flags::Flags;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::Duration,
};

pub(crate) const HELP: &str = "\
usage: workload BEHAVIOUR [--flag VALUE]...

  pause                              the sandbox's init: leaves on SIGTERM or SIGINT, reaps orphans
  handle      --for D [--exit N] [--on S]
                                     handles signal number S (default: SIGTERM), works for D after it, exits N
  overrun                            handles SIGTERM, never leaves
  default                            no handler: ignored by the kernel as PID 1, else the default action
  ignore                             the same as default, named after what it does as PID 1
  sig-ign                            SIGTERM set to SIG_IGN
  block                              SIGTERM blocked and never taken
  sigwait     --for D [--exit N]     takes SIGTERM by sigwait(3)
  signalfd    --for D [--exit N]     takes SIGTERM by signalfd(2)
  go-style    [--for D]              handles SIGTERM, restores its default action, raises it on itself
                                     and exits 2 if it survives, as Go's runtime does
  leader-exits [--for D] [--exit N]  handles SIGTERM; the leading thread ends at once, another one works on
  serve       --port N --for D [--at A] [--good N] [--exit N]
                                     answers HTTP at address A (default: 127.0.0.1), each request after D, with 500
                                     after the first N good answers (default: never), or after SIGUSR1; handles SIGTERM and exits N
                                     at once
  listen      --ports N[,N]... [--at A] [--sockets N] [--backlog N] [--takes T] [--work D] [--bytes N]
              [--on-stop S] [--for D] [--exit N]
                                     answers lines over TCP at address A (default: ::, that is IPv4 and IPv6) with the
                                     same line, D of --work after it came, filled up to N bytes; listens N times on each
                                     port (SO_REUSEPORT); T is what it does with connections: all (answers), none
                                     (accepts none) or unread (accepts, reads nothing); S is what it does on SIGTERM:
                                     exit at once (default), drain, close its listeners, serve on, or reset; after
                                     that it exits N after D of --for (default: a drain when it is done, others never)
  relay       --ports N[,N]... --to N [--at A] [--on-stop S] [--for D] [--exit N]
                                     hands connections on to port N of 127.0.0.1, as a sidecar; the rest as listen
  call        --every D              handles SIGTERM, and from then on calls the apiserver every D, for ever;
                                     KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT say where that is
  spawn       --children N --for D [--exit N]
                                     as handle, with N children that nobody signals
  shell       --child BEHAVIOUR ...  runs the child and waits for it, forwards nothing (sh -c 'app; true')
  crash       --after D              a real segmentation fault
  flood                              takes a name that is no UTF-8, and sends itself SIGHUP for ever
  oom         --after D --mib N      touches N MiB, then sleeps
  job         --for D [--exit N]     works for D, exits N
  sleep       --for D                the same, for hooks
  kill        --pid N [--on S] [--for D] [--exit N]
                                     sends signal number S (default: SIGTERM) to process N, as a hook or an exec
                                     session does, leaves after D (default: at once), exits N
  kill-neighbour --of BEHAVIOUR [--on S]
                                     waits for SIGUSR1, then sends signal number S (default: SIGTERM) to the
                                     process of its PID namespace with this behaviour; never leaves
  beat        --page FILE [--term T] [--end E] [--exit N]
                                     leaves its heartbeat in a shared page; T is what it does about SIGTERM:
                                     leave, stay, none or block; E is how it ends when the page says so:
                                     exit, crash or oom

D is a number with ms, s, m or h: 250ms, 2s. N of --exit is 0 to 255.
";

/// What to do with this life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    Pause,
    Handle { signal: u8, work: Duration, exit: u8 },
    Overrun,
    Default,
    SigIgn,
    Block,
    Sigwait { work: Duration, exit: u8 },
    Signalfd { work: Duration, exit: u8 },
    GoStyle { work: Duration },
    LeaderExits { work: Duration, exit: u8 },
    Serve { at: IpAddr, port: u16, work: Duration, good: Option<u32>, exit: u8 },
    Listen { door: Door, manner: Manner, stop: StopBehaviour },
    Relay { door: Door, to: u16, stop: StopBehaviour },
    Call { every: Duration },
    Spawn { children: u32, work: Duration, exit: u8 },
    Shell { child: Vec<String> },
    Crash { after: Duration },
    Flood,
    Kill { pid: i32, signal: u8, work: Duration, exit: u8 },
    KillNeighbour { behaviour: String, signal: u8 },
    Oom { after: Duration, mib: usize },
    Job { work: Duration, exit: u8 },
    Beat { page: PathBuf, term: Term, end: BeatEnd },
}

/// What a beating workload does about SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Term {
    /// Handles it and leaves soon after.
    Leave,
    /// Handles it and stays.
    Stay,
    /// Has no handler.
    None,
    /// Blocks it and never takes it.
    Block,
}

/// How a beating workload ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BeatEnd {
    /// With this code.
    Exit(u8),
    /// By a segmentation fault.
    Crash,
    /// By more memory than it may have.
    Oom,
}

/// A command line that was understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Parsed {
    Help,
    Run(Behaviour),
}

/// A command line that was not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Error {
    NoBehaviour,
    UnknownBehaviour(String),
    UnknownFlag { behaviour: String, flag: String },
    NoValue(String),
    Missing { behaviour: String, flag: &'static str },
    Twice(String),
    Bad { flag: &'static str, value: String, wanted: &'static str },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoBehaviour => write!(f, "which behaviour?"),
            Error::UnknownBehaviour(name) => write!(f, "no behaviour is called {name:?}"),
            Error::UnknownFlag { behaviour, flag } => write!(f, "{behaviour} takes no {flag:?}"),
            Error::NoValue(flag) => write!(f, "{flag} needs a value"),
            Error::Missing { behaviour, flag } => write!(f, "{behaviour} needs {flag}"),
            Error::Twice(flag) => write!(f, "{flag} is given twice"),
            Error::Bad { flag, value, wanted } => write!(f, "{flag} {value:?} is not {wanted}"),
        }
    }
}

/// Understands the words after the program's name.
pub(crate) fn parse(words: &[String]) -> Result<Parsed, Error> {
    let (name, rest) = words.split_first().ok_or(Error::NoBehaviour)?;
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        return Ok(Parsed::Help);
    }
    if name == "shell" {
        return shell(rest).map(Parsed::Run);
    }
    let allowed: &[&'static str] = match name.as_str() {
        "pause" | "overrun" | "default" | "ignore" | "sig-ign" | "block" | "flood" => &[],
        "handle" => &["--for", "--exit", "--on"],
        "sigwait" | "signalfd" | "leader-exits" | "job" => &["--for", "--exit"],
        "serve" => &["--at", "--port", "--for", "--good", "--exit"],
        "listen" => &[
            "--ports",
            "--at",
            "--sockets",
            "--backlog",
            "--takes",
            "--work",
            "--bytes",
            "--on-stop",
            "--for",
            "--exit",
        ],
        "relay" => &["--ports", "--to", "--at", "--on-stop", "--for", "--exit"],
        "call" => &["--every"],
        "go-style" | "sleep" => &["--for"],
        "spawn" => &["--children", "--for", "--exit"],
        "crash" => &["--after"],
        "oom" => &["--after", "--mib"],
        "kill" => &["--pid", "--on", "--for", "--exit"],
        "kill-neighbour" => &["--of", "--on"],
        "beat" => &["--page", "--term", "--end", "--exit"],
        _ => return Err(Error::UnknownBehaviour(name.clone())),
    };
    let flags = Flags::read(name, allowed, rest)?;
    Ok(Parsed::Run(match name.as_str() {
        "pause" => Behaviour::Pause,
        "overrun" => Behaviour::Overrun,
        "sig-ign" => Behaviour::SigIgn,
        "block" => Behaviour::Block,
        "handle" => Behaviour::Handle {
            signal: flags.signal()?,
            work: flags.duration("--for")?,
            exit: flags.exit()?,
        },
        "serve" => Behaviour::Serve {
            at: flags.address(Ipv4Addr::LOCALHOST.into())?,
            port: flags.number("--port", "a port")?,
            work: flags.duration("--for")?,
            good: flags.number_or_none("--good", "a number of answers")?,
            exit: flags.exit()?,
        },
        "listen" => {
            Behaviour::Listen { door: flags.door()?, manner: flags.manner()?, stop: flags.stop()? }
        }
        "relay" => Behaviour::Relay {
            door: flags.door()?,
            to: flags.number("--to", "a port")?,
            stop: flags.stop()?,
        },
        "call" => Behaviour::Call { every: flags.duration("--every")? },
        "sigwait" => Behaviour::Sigwait { work: flags.duration("--for")?, exit: flags.exit()? },
        "signalfd" => Behaviour::Signalfd { work: flags.duration("--for")?, exit: flags.exit()? },
        "go-style" => Behaviour::GoStyle { work: flags.duration_or_none("--for")? },
        "leader-exits" => {
            Behaviour::LeaderExits { work: flags.duration_or_none("--for")?, exit: flags.exit()? }
        }
        "spawn" => Behaviour::Spawn {
            children: flags.number("--children", "a number of processes")?,
            work: flags.duration("--for")?,
            exit: flags.exit()?,
        },
        "flood" => Behaviour::Flood,
        "crash" => Behaviour::Crash { after: flags.duration("--after")? },
        "oom" => Behaviour::Oom {
            after: flags.duration("--after")?,
            mib: flags.number("--mib", "a number of MiB")?,
        },
        "job" | "sleep" => Behaviour::Job { work: flags.duration("--for")?, exit: flags.exit()? },
        "kill" => Behaviour::Kill {
            pid: flags.number("--pid", "the number of a process")?,
            signal: flags.signal()?,
            work: flags.duration_or_none("--for")?,
            exit: flags.exit()?,
        },
        "kill-neighbour" => Behaviour::KillNeighbour {
            behaviour: flags.required("--of")?.into(),
            signal: flags.any_signal()?,
        },
        "beat" => Behaviour::Beat {
            page: flags.required("--page")?.into(),
            term: flags.term()?,
            end: flags.end()?,
        },
        _ => Behaviour::Default,
    }))
}

/// Everything after `--child` is the child's own command line, checked before anything runs.
fn shell(rest: &[String]) -> Result<Behaviour, Error> {
    match rest.split_first() {
        Some((flag, child)) if flag == "--child" => match parse(child)? {
            Parsed::Run(_) => Ok(Behaviour::Shell { child: child.to_vec() }),
            Parsed::Help => Err(Error::NoBehaviour),
        },
        Some((flag, _)) => {
            Err(Error::UnknownFlag { behaviour: "shell".into(), flag: flag.clone() })
        }
        None => Err(Error::Missing { behaviour: "shell".into(), flag: "--child" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{OnStop, Takes};
    use std::net::Ipv6Addr;

    fn line(text: &str) -> Result<Parsed, Error> {
        let words: Vec<String> = text.split_whitespace().map(String::from).collect();
        parse(&words)
    }

    fn run(text: &str) -> Behaviour {
        match line(text) {
            Ok(Parsed::Run(behaviour)) => behaviour,
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn behaviours_take_their_flags() {
        let two = Duration::from_secs(2);
        assert_eq!(run("pause"), Behaviour::Pause);
        let handle = |signal| Behaviour::Handle { signal, work: two, exit: 0 };
        assert_eq!(run("handle --for 2s"), handle(15));
        assert_eq!(run("handle --for 2s --on 3"), handle(3));
        let at = IpAddr::from(Ipv4Addr::LOCALHOST);
        let serve = |good, exit| Behaviour::Serve { at, port: 8080, work: two, good, exit };
        assert_eq!(run("serve --port 8080 --for 2s"), serve(None, 0));
        assert_eq!(run("serve --port 8080 --for 2s --good 3 --exit 1"), serve(Some(3), 1));
        let at = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        let everywhere = Behaviour::Serve { at, port: 8080, work: two, good: None, exit: 0 };
        assert_eq!(run("serve --at :: --port 8080 --for 2s"), everywhere);
        assert_eq!(
            run("listen --ports 80,81"),
            Behaviour::Listen {
                door: Door { at, ports: vec![80, 81], sockets: 1, backlog: 1024 },
                manner: Manner { takes: Takes::All, work: Duration::ZERO, bytes: 0 },
                stop: StopBehaviour { on: OnStop::Exit, after: None, exit: 0 },
            }
        );
        assert_eq!(
            run(
                "listen --ports 80 --at 10.0.0.1 --sockets 2 --backlog 1 --takes unread --work 2s \
                 --bytes 9 --on-stop drain --for 2s --exit 3"
            ),
            Behaviour::Listen {
                door: Door { at: [10, 0, 0, 1].into(), ports: vec![80], sockets: 2, backlog: 1 },
                manner: Manner { takes: Takes::Unread, work: two, bytes: 9 },
                stop: StopBehaviour { on: OnStop::Drain, after: Some(two), exit: 3 },
            }
        );
        assert_eq!(
            run("relay --ports 80 --to 81 --on-stop close"),
            Behaviour::Relay {
                door: Door { at, ports: vec![80], sockets: 1, backlog: 1024 },
                to: 81,
                stop: StopBehaviour { on: OnStop::Close, after: None, exit: 0 },
            }
        );
        assert_eq!(run("call --every 2s"), Behaviour::Call { every: two });
        assert_eq!(
            run("spawn --exit 3 --for 2000ms --children 4"),
            Behaviour::Spawn { children: 4, work: two, exit: 3 }
        );
        assert_eq!(run("go-style"), Behaviour::GoStyle { work: Duration::ZERO });
        assert_eq!(run("oom --after 2s --mib 64"), Behaviour::Oom { after: two, mib: 64 });
        let kill = |pid, signal| Behaviour::Kill { pid, signal, work: Duration::ZERO, exit: 0 };
        assert_eq!(run("kill --pid 1"), kill(1, 15));
        assert_eq!(run("kill --pid 7 --on 3"), kill(7, 3));
        let neighbour = |signal| Behaviour::KillNeighbour { behaviour: "handle".into(), signal };
        assert_eq!(run("kill-neighbour --of handle"), neighbour(15));
        assert_eq!(run("kill-neighbour --of handle --on 9"), neighbour(9));
        assert_eq!(run("sleep --for 2s"), run("job --for 2s"));
        assert_eq!(run("ignore"), run("default"));
        let beat = |term, end| Behaviour::Beat { page: "/beat".into(), term, end };
        assert_eq!(run("beat --page /beat"), beat(Term::None, BeatEnd::Exit(0)));
        assert_eq!(run("beat --page /beat --exit 3"), beat(Term::None, BeatEnd::Exit(3)));
        assert_eq!(
            run("beat --term block --end oom --page /beat"),
            beat(Term::Block, BeatEnd::Oom)
        );
        assert_eq!(
            run("beat --term stay --end crash --page /beat"),
            beat(Term::Stay, BeatEnd::Crash)
        );
    }

    #[test]
    fn a_shell_takes_the_childs_whole_line() {
        assert_eq!(
            run("shell --child handle --for 1s"),
            Behaviour::Shell { child: ["handle", "--for", "1s"].map(String::from).to_vec() }
        );
        assert_eq!(
            line("shell --child handle"),
            Err(Error::Missing { behaviour: "handle".into(), flag: "--for" }),
            "the child's line is checked before anything runs"
        );
    }

    #[test]
    fn nonsense_is_named() {
        let said = |text: &str| line(text).err().map(|error| error.to_string());
        assert_eq!(said("").as_deref(), Some("which behaviour?"));
        assert_eq!(said("explode").as_deref(), Some("no behaviour is called \"explode\""));
        assert_eq!(said("pause --for 1s").as_deref(), Some("pause takes no \"--for\""));
        assert_eq!(said("handle").as_deref(), Some("handle needs --for"));
        assert_eq!(said("beat").as_deref(), Some("beat needs --page"));
        assert_eq!(
            said("beat --page /beat --term maybe").as_deref(),
            Some("--term \"maybe\" is not leave, stay, none or block")
        );
        assert_eq!(
            said("beat --page /beat --end never").as_deref(),
            Some("--end \"never\" is not exit, crash or oom")
        );
        assert_eq!(
            said("handle --for 1s --on 9").as_deref(),
            Some("--on \"9\" is not a signal's number, 1 to 31 without 9 and 19")
        );
        assert_eq!(
            said("listen --ports 80,").as_deref(),
            Some("--ports \"80,\" is not ports such as 8080 or 8080,8081")
        );
        assert_eq!(
            said("listen --ports 80 --on-stop flee").as_deref(),
            Some("--on-stop \"flee\" is not exit, drain, close, serve or reset")
        );
        assert_eq!(
            said("listen --ports 80 --takes some").as_deref(),
            Some("--takes \"some\" is not all, none or unread")
        );
        assert_eq!(
            said("listen --ports 80 --bytes 99999999").as_deref(),
            Some("--bytes \"99999999\" is not a length up to 16777216")
        );
        assert_eq!(said("kill --on 3").as_deref(), Some("kill needs --pid"));
        assert_eq!(said("handle --for").as_deref(), Some("--for needs a value"));
        assert_eq!(said("job --for 1s --for 2s").as_deref(), Some("--for is given twice"));
        assert_eq!(
            said("job --for 1s --exit 256").as_deref(),
            Some("--exit \"256\" is not an exit status of 0 to 255")
        );
        assert_eq!(
            said("job --for 10").as_deref(),
            Some("--for \"10\" is not a duration such as 250ms or 2s")
        );
    }
}
