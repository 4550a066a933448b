//! A name server that knows one name: RFC 1035, as far as a stub resolver's questions go.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Answers on 127.0.0.1:53 of this thread's network namespace from now on; how often it was asked.
pub(crate) fn serve(name: &'static str) -> Arc<AtomicUsize> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            counter.fetch_add(1, Ordering::Relaxed);
            if let Some(answer) = answer(&packet[..length], name) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    asked
}

/// `name` is at 127.0.0.1 and has no IPv6 address; all others do not exist.
fn answer(question: &[u8], name: &str) -> Option<Vec<u8>> {
    const A: [u8; 2] = [0, 1];
    let (mut asked, mut at) = (Vec::new(), 12);
    while let Some(&length) = question.get(at).filter(|&&length| length > 0) {
        let label = question.get(at + 1..at + 1 + usize::from(length))?;
        asked.push(String::from_utf8_lossy(label).into_owned());
        at += 1 + usize::from(length);
    }
    let end = at + 5; // the root's empty label, type and class
    let kind = question.get(at + 1..at + 3)?;
    let known = asked.join(".") == name;
    let has_address = known && kind == A;
    // Answer, authoritative, recursion wanted and available; no error, or NXDOMAIN.
    let mut reply = question.get(..2)?.to_vec();
    reply.extend([0x85, if known { 0x80 } else { 0x83 }]);
    reply.extend([0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    reply.extend(question.get(12..end)?);
    if has_address {
        reply.extend([0xc0, 12]); // the name is the question's
        reply.extend([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(reply)
}
