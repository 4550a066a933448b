//! The self-test of what counts connections: a loopback pair of our own, in whatever network namespace this
//! process is in. The entry for it is a trial: it counts only what has the port of our listener at either end, so
//! that the host's namespace is never counted in as a pod's.

use super::actors::Actor;
use crate::{
    linux::clock,
    sources::kernel::{
        counting::{Counting, RESETS, TRANSITIONS, counts},
        plan::Planned,
    },
};
use coroner_core::input::{ConnectionEvent, TrafficPeer};
use coroner_ebpf::traffic::{TRIAL, Traffic};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    time::Duration,
};

/// Loopback answers in microseconds; what filters it may swallow what is sent.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Attaches what counts connections, proves it, and detaches it again. A hook that does not count what it should is
/// refused and its plan says why. Returns why the test could not be made.
pub(in crate::sources::kernel) fn prove_counting(
    counting: &mut Counting,
    plan: &mut [Planned],
) -> Option<String> {
    if !counting.loads(TRANSITIONS) {
        return None;
    }
    let refuse = |counting: &mut Counting, plan: &mut [Planned], hook: &str, what: &str| {
        counting.refuse(hook);
        for planned in plan.iter_mut().filter(|planned| planned.hook.name == hook) {
            planned.verdict =
                Err(format!("refused by the self-test: {what}: {}", planned.hook.loss));
        }
    };
    if let Err(error) = counting.attach() {
        refuse(counting, plan, TRANSITIONS, &format!("it cannot be attached: {error}"));
        return None;
    }
    let began = clock::boot_now().0;
    let entry = try_out(counting);
    counting.detach();
    let entry = match entry {
        Ok(entry) => entry,
        Err(error) => return Some(format!("the self-test's loopback connection failed: {error}")),
    };
    let now = clock::boot_now().0;
    let happened = counts(&entry);
    let saw = |event| {
        happened.iter().any(|count| {
            (count.peer, count.event, count.count) == (TrafficPeer::Client, event, 1)
                && (began..=now).contains(&count.first.0)
                && (began..=now).contains(&count.last.0)
        })
    };
    use ConnectionEvent::{Cut, ListenerClosed, Opened, Refused};
    let transitions = [Opened, Cut, ListenerClosed].into_iter().all(saw);
    for (hook, proven) in [(TRANSITIONS, transitions), (RESETS, saw(Refused))] {
        if !proven
            && plan.iter().any(|planned| planned.hook.name == hook && planned.verdict.is_ok())
        {
            let counted: Vec<_> = happened
                .iter()
                .map(|one| format!("{} {} {}", one.peer, one.event, one.count))
                .collect();
            let what = format!("wrong counts of a loopback connection ({})", counted.join(", "));
            refuse(counting, plan, hook, &what);
        }
    }
    None
}

/// Opens a connection to a child process, which exits with an unanswered request, and connects once more where
/// nobody listens. What was counted of that.
fn try_out(counting: &mut Counting) -> io::Result<Traffic> {
    let netns = fs::metadata("/proc/self/ns/net")?.ino();
    let netns = u32::try_from(netns).map_err(io::Error::other)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut entry = Traffic { known: 1, flags: TRIAL, ..Traffic::default() };
    entry.ports[0] = address.port();
    counting.put(netns, entry).map_err(io::Error::other)?;
    let played = play(listener);
    let counted = counting.read(netns);
    counting.remove(netns);
    played?;
    counted.ok_or_else(|| io::Error::other("the entry is gone"))
}

fn play(listener: TcpListener) -> io::Result<()> {
    let address = listener.local_addr()?;
    let mut client = TcpStream::connect_timeout(&address, TIMEOUT)?;
    client.set_read_timeout(Some(TIMEOUT))?;
    let (accepted, _) = listener.accept()?;
    let mut server = Actor::reader(&accepted)?;
    drop(accepted);
    client.write_all(b"?")?;
    server.wait()?;
    client.read_to_end(&mut Vec::new())?;
    client.shutdown(Shutdown::Both)?;
    drop(listener);
    match TcpStream::connect_timeout(&address, TIMEOUT) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("another process has taken the port")),
    }
}
