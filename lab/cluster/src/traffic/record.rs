//! What clients have recorded, and its sum.

use super::Habit;
use std::{io::ErrorKind, net::SocketAddr};

/// When something happened: between two readings of CLOCK_BOOTTIME, before and after the client's call, ns.
/// The kernel's own time for what the call saw lies before `after`; for what the call did (a handshake, a
/// request), the server's side may be some microseconds behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// Read before the call. Of an end: when the client began to wait for what ended it.
    pub before: u64,
    /// Read after the call.
    pub after: u64,
}

/// What became of a call to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// It is open.
    Connected,
    /// The server's kernel refused it with a reset.
    Refused,
    /// Nobody answered.
    TimedOut,
    /// Anything else.
    Failed(ErrorKind),
}

/// A request, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// When it was sent.
    pub asked: Between,
    /// When the answer had come as a whole.
    pub answered: Option<Between>,
    /// The answer is the right one: a proxy answers something else where nobody is behind it.
    pub is_good: bool,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    ClosedByClient,
    ResetByClient,
    /// The server's side ended in order (FIN), be it by the application or by its exit.
    Eof,
    /// The server's side reset it.
    Reset,
    /// Anything else, such as a server that does not answer any more.
    Failed(ErrorKind),
}

/// One connection, from the client's side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientConnection {
    /// What the client was to do.
    pub habit: Habit,
    /// The client's own address, once it has one.
    pub from: Option<SocketAddr>,
    /// When it was opened, or was not.
    pub opened: Between,
    /// What became of that.
    pub opening: Opening,
    /// The requests, in order.
    pub exchanges: Vec<Exchange>,
    /// When and how it ended, if it was open.
    pub ended: Option<(Between, Ending)>,
}

impl ClientConnection {
    /// A request has no answer, or a part of one.
    pub fn is_mid_request(&self) -> bool {
        self.exchanges.iter().any(|exchange| exchange.answered.is_none())
    }

    /// When the handshake was completed: the client's own call may return before the server's side has seen its end,
    /// but nothing else comes before that.
    pub fn established(&self) -> Between {
        let answered = self.exchanges.iter().find_map(|exchange| exchange.answered);
        let seen = answered.or(self.ended.map(|(ended, _)| ended));
        Between { before: self.opened.before, after: seen.map_or(self.opened.after, |at| at.after) }
    }

    /// How it ended, if it was open.
    pub fn ending(&self) -> Option<Ending> {
        self.ended.map(|(_, ending)| ending)
    }
}

/// A number of which some lie so near to a moment that either side may be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// So many for certain.
    pub least: usize,
    /// With those that may be.
    pub most: usize,
}

impl Bounds {
    /// Whether a number agrees.
    pub fn contain(self, number: usize) -> bool {
        (self.least..=self.most).contains(&number)
    }

    /// How many of these spans end after a moment.
    pub fn after(moment: u64, spans: impl Iterator<Item = Between>) -> Self {
        let mut bounds = Self::default();
        for span in spans {
            bounds.least += usize::from(span.before >= moment);
            bounds.most += usize::from(span.after >= moment);
        }
        bounds
    }
}

/// The sum of a record. `opened` is the sum of all the ways to end: `cut_idle`, `cut_mid_request`, `reset`,
/// `closed_by_client`, `reset_by_client` and `failed`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientsTruth {
    /// Connections that were opened.
    pub opened: usize,
    /// Of these, after the server was asked to stop.
    pub opened_after_stop: Bounds,
    /// Attempts that were refused.
    pub refused: usize,
    /// Attempts that nobody answered.
    pub timed_out: usize,
    /// Attempts that failed otherwise: the client's own side.
    pub not_opened: usize,
    /// Requests that were sent.
    pub asked: usize,
    /// Of these, those with a good answer.
    pub answered: usize,
    /// Of these, those with an answer that is none.
    pub answered_badly: usize,
    /// Ended by the server with nothing open: closed in order, or cut by its exit.
    pub cut_idle: usize,
    /// Ended by the server, but not reset, while a request was open.
    pub cut_mid_request: usize,
    /// Reset by the server.
    pub reset: usize,
    /// Of these, while a request was open.
    pub reset_mid_request: usize,
    pub closed_by_client: usize,
    pub reset_by_client: usize,
    /// Ended otherwise.
    pub failed: usize,
    pub last_opened: Option<Between>,
    /// The first and the last that were refused.
    pub refusals: Option<(Between, Between)>,
}

impl ClientsTruth {
    /// Of a record, for a server that was asked to stop at this moment, ns of CLOCK_BOOTTIME.
    pub fn of(record: &[ClientConnection], stop: u64) -> Self {
        let with = |opening| {
            let those = record.iter().filter(move |one| one.opening == opening);
            those.map(|one| one.opened)
        };
        let mut truth = Self {
            opened: with(Opening::Connected).count(),
            opened_after_stop: Bounds::after(stop, with(Opening::Connected)),
            refused: with(Opening::Refused).count(),
            timed_out: with(Opening::TimedOut).count(),
            last_opened: with(Opening::Connected).max_by_key(|span| span.after),
            refusals: with(Opening::Refused)
                .min_by_key(|span| span.before)
                .zip(with(Opening::Refused).max_by_key(|span| span.after)),
            ..Self::default()
        };
        for connection in record {
            truth.not_opened += usize::from(matches!(connection.opening, Opening::Failed(_)));
            truth.asked += connection.exchanges.len();
            for exchange in connection.exchanges.iter().filter(|one| one.answered.is_some()) {
                truth.answered += usize::from(exchange.is_good);
                truth.answered_badly += usize::from(!exchange.is_good);
            }
            let is_mid_request = connection.is_mid_request();
            match connection.ending() {
                None => {}
                Some(Ending::ClosedByClient) => truth.closed_by_client += 1,
                Some(Ending::ResetByClient) => truth.reset_by_client += 1,
                Some(Ending::Eof) if is_mid_request => truth.cut_mid_request += 1,
                Some(Ending::Eof) => truth.cut_idle += 1,
                Some(Ending::Reset) => {
                    truth.reset += 1;
                    truth.reset_mid_request += usize::from(is_mid_request);
                }
                Some(Ending::Failed(_)) => truth.failed += 1,
            }
        }
        truth
    }
}
