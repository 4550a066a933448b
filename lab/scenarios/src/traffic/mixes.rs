//! Mixes by chance: 200 connections of all habits, on servers that end them in all ways.

use super::serves;
use crate::{
    clients::{Crowd, Ends},
    draft::{Draft, code},
};
use coroner_core::{input::ConnectionEvent as E, types::Verdict};
use coroner_lab_cluster::traffic::Habit;
use std::{sync::LazyLock, time::Duration};

const CONNECTIONS: usize = 200;
/// Answers of megabytes: so many clients leave theirs unread.
const DEAF: usize = 3;

static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| (1..=20).map(|seed| format!("mix-{seed:02}")).collect());

/// A way to serve.
struct Server {
    command: &'static str,
    ends: Ends,
    listener: (E, u64),
    reads: bool,
    /// Connections arrive until so long after the stop signal.
    lag: Option<Duration>,
    habits: &'static [Habit],
}

const STEADY: Habit = Habit::Steady { every: Duration::from_millis(200) };
const SERVER: Server = Server {
    command: "listen --ports 8080",
    ends: Ends::ByExit,
    listener: (E::ListenerCut, 1),
    reads: true,
    lag: None,
    habits: &[],
};
const CLOSED: (E, u64) = (E::ListenerClosed, 1);
const SERVERS: [Server; 9] = {
    use Habit::{Abort, Deaf, HalfClosed, Idle, Once, Pending, Silent};
    let lag = Some(Duration::from_secs(1));
    [
        Server { habits: &[Silent, Idle, STEADY, Once, Abort], ..SERVER },
        Server {
            command: "listen --ports 8080 --work 1h",
            habits: &[Silent, Pending, HalfClosed],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --work 1s --on-stop drain",
            ends: Ends::InOrder,
            listener: CLOSED,
            habits: &[Silent, Idle, Pending, HalfClosed, Once],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --on-stop reset",
            ends: Ends::ByReset,
            habits: &[Silent, Idle, Abort],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --takes unread",
            reads: false,
            habits: &[Silent, Pending],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --takes none",
            reads: false,
            habits: &[Silent, Pending],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --on-stop close --for 2s",
            listener: CLOSED,
            lag,
            habits: &[Silent, Idle, STEADY],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --sockets 2 --on-stop serve --for 2s",
            listener: (E::ListenerCut, 2),
            lag,
            habits: &[Silent, Idle, STEADY, Abort],
            ..SERVER
        },
        Server {
            command: "listen --ports 8080 --bytes 16777216",
            habits: &[Silent, Deaf],
            ..SERVER
        },
    ]
};

pub(super) fn scenarios() -> impl Iterator<Item = Draft> {
    NAMES.iter().zip(1..).map(|(name, seed)| mix(name, seed))
}

fn mix(name: &'static str, seed: u64) -> Draft {
    let mut random = fastrand::Rng::with_seed(seed);
    let server = &SERVERS[seed as usize % SERVERS.len()];
    // Of each habit, from each side.
    let mut numbers = vec![[0; 3]; server.habits.len()];
    for number in 0..CONNECTIONS {
        let mut habit = random.usize(..server.habits.len());
        if server.habits[habit] == Habit::Deaf && number >= DEAF {
            habit = 0;
        }
        numbers[habit][random.usize(..3)] += 1;
    }
    let mut draft = serves(name, 10, server.command)
        .shows("200 connections of all habits, by chance, from another node and from this one.")
        .dies("app", Verdict::Graceful, code(0))
        .ends_connections(server.ends)
        .counts([server.listener])
        .finds_what_was_recorded();
    for side in 0..3 {
        let habits = server.habits.iter().copied();
        let crowd = Crowd::of(habits.zip(numbers.iter().map(|of_habit| of_habit[side])));
        let crowd = match side {
            0 => crowd,
            1 => crowd.over_v6(),
            _ => crowd.on_node(),
        };
        let crowd = if server.reads { crowd } else { crowd.unread() };
        draft = draft.clients(match server.lag {
            Some(lag) => crowd.arriving(lag),
            None => crowd,
        });
    }
    draft
}
