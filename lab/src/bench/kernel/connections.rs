//! What counting the connections of terminating pods adds to a state transition of a TCP socket, in a network namespace
//! that is counted and in another. While no pod terminates, nothing is attached and nothing is added.

use super::empty::Empty;
use crate::bench::{
    load::pin,
    programs::{self, Statistics},
    table::{percentile, shown},
};
use anyhow::{Context as _, bail};
use coroner::sources::kernel::counting::Counting;
use std::{
    io::Read as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt as _,
    thread,
};

/// The tracepoint.
const HOOK: &str = "inet_sock_set_state";
/// Connections of one run, one after the other.
const CONNECTIONS: u32 = 2000;
/// Namespaces of terminating pods. Their numbers, from 1 on, are not those of namespaces that exist.
const OTHERS: u32 = 250;

/// Two rows of the table.
pub(super) fn measure(mut counting: Counting, rounds: usize) -> anyhow::Result<Vec<Vec<String>>> {
    let measured = thread::spawn(move || {
        pin(None).context("cannot stay on one CPU")?;
        let netns = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let own = u32::try_from(netns)?;
        for netns in 1..=OTHERS {
            counting.insert(netns, &[])?;
        }
        let mut rows = Vec::new();
        for is_counted in [false, true] {
            let title = match is_counted {
                false => "a TCP state transition, not counted",
                true => "a TCP state transition, counted",
            };
            if is_counted {
                counting.insert(own, &[])?;
            }
            let mut costs = [const { Vec::new() }; 2];
            for round in 0..=rounds {
                let cost = once(&mut counting)?;
                if round > 0 {
                    costs.iter_mut().zip(cost).for_each(|(all, one)| all.push(one));
                }
            }
            let [ours, empty] = costs.map(|all| percentile(&all, 50));
            let place = "–".to_owned();
            rows.push(vec![title.into(), place, HOOK.into(), shown(ours - empty), shown(empty)]);
        }
        anyhow::Ok(rows)
    });
    measured.join().unwrap_or_else(|_| bail!("the measurement panicked"))
}

/// ns for each transition, of the agent's programs and of an empty one.
fn once(counting: &mut Counting) -> anyhow::Result<[f64; 2]> {
    let own = std::process::id();
    let first = Empty::attach(&[HOOK])?;
    counting.attach().map_err(anyhow::Error::msg)?;
    let mut ours = programs::of_process(own)?;
    let of_first = first.on(HOOK)?;
    ours.retain(|id, on| *id != of_first && on.as_deref() == Some(HOOK));
    let last = Empty::attach(&[HOOK])?;
    let then = Statistics::read();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(address)?;
        let (mut server, _) = listener.accept()?;
        drop(client);
        anyhow::ensure!(server.read(&mut [0])? == 0, "data that nobody sent");
    }
    let now = Statistics::read();
    counting.detach();
    let runs = [now.since(&then, ours.keys()), now.since(&then, &[last.on(HOOK)?])];
    anyhow::ensure!(runs.iter().all(|runs| runs.count >= CONNECTIONS.into()), "{HOOK}: {runs:?}");
    Ok(runs.map(|runs| runs.time.as_nanos() as f64 / runs.count as f64))
}
