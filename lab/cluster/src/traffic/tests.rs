//! What clients record of servers that do one thing each, on this machine's loopback.

use super::*;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
};

/// A server: what it does with all of its connections, once so many have come.
fn server(
    number: usize,
    what: impl FnOnce(Vec<TcpStream>) + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let come = listener.incoming().take(number).map(Result::unwrap).collect();
        drop(listener);
        what(come);
    };
    (address, thread::spawn(serve))
}

/// Reads a request and gives it.
fn asked(stream: &TcpStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

fn clients(to: SocketAddr, load: Load) -> Clients {
    Clients::run(to, load, || Ok(())).unwrap()
}

async fn truth(to: SocketAddr, load: Load) -> ClientsTruth {
    let clients = clients(to, load);
    clients.ended().await.unwrap();
    let record = clients.finish().await.unwrap();
    for one in &record {
        let mut times = vec![one.opened.before, one.opened.after];
        times.extend(one.exchanges.iter().flat_map(|one| [one.asked.before, one.asked.after]));
        times.extend(one.ended.map(|(at, _)| at.after));
        assert!(times.is_sorted(), "{one:?}");
    }
    ClientsTruth::of(&record, u64::MAX)
}

#[tokio::test]
async fn what_is_answered_is_closed_by_the_client() {
    let (to, served) = server(3, |all| {
        for mut one in all {
            let line = asked(&one);
            one.write_all(line.as_bytes()).unwrap();
            // Until the client has closed it.
            asked(&one);
        }
    });
    let truth = truth(to, Load::standing([(Habit::Once, 3)])).await;
    let expected =
        ClientsTruth { opened: 3, asked: 3, answered: 3, closed_by_client: 3, ..truth.clone() };
    assert_eq!(truth, expected);
    assert_eq!((truth.cut_idle, truth.cut_mid_request, truth.reset, truth.refused), (0, 0, 0, 0));
    assert_eq!(truth.opened_after_stop, Bounds::default());
    served.join().unwrap();
}

#[tokio::test]
async fn an_end_is_idle_mid_request_or_a_reset() {
    let (to, served) = server(4, |all| {
        // One answered, one answered in part, one not at all, and one not even read: that is reset.
        for (mut one, answer) in all.into_iter().zip(["0\n", "0", "", "-"]) {
            if answer != "-" {
                asked(&one);
                one.write_all(answer.as_bytes()).unwrap();
            } else {
                one.peek(&mut [0]).unwrap();
            }
        }
    });
    let truth = truth(to, Load::standing([(Habit::Idle, 4)])).await;
    assert_eq!((truth.opened, truth.asked, truth.answered), (4, 4, 1));
    assert_eq!((truth.cut_idle, truth.cut_mid_request), (1, 2));
    assert_eq!((truth.reset, truth.reset_mid_request), (1, 1));
    served.join().unwrap();
}

#[tokio::test]
async fn another_answer_than_the_request_is_a_bad_one() {
    let (to, served) = server(1, |all| {
        asked(&all[0]);
        (&all[0]).write_all(b"502\n").unwrap();
    });
    let truth = truth(to, Load::standing([(Habit::Idle, 1)])).await;
    assert_eq!((truth.answered, truth.answered_badly, truth.cut_idle), (0, 1, 1));
    served.join().unwrap();
}

#[tokio::test]
async fn arrivals_are_refused_until_they_stop() {
    let (to, served) = server(0, drop);
    served.join().unwrap();
    let every = Duration::from_millis(1);
    let clients = clients(to, Load::default().arriving(every, Habit::Once));
    clients.settled().await.unwrap();
    clients.stop_arriving_after(Duration::from_millis(20));
    clients.ended().await.unwrap();
    let record = clients.finish().await.unwrap();
    let truth = ClientsTruth::of(&record, 0);
    assert!(truth.refused > 0 && truth.opened == 0, "{truth:?}");
    let (first, last) = truth.refusals.unwrap();
    assert!(first.before <= last.after);
    assert_eq!(truth.refused, record.len());
}

#[tokio::test]
async fn what_stays_open_is_closed_at_the_end() {
    let (to, served) = server(3, |all| {
        // A part of an answer for all: also for the one that has not asked.
        all.iter().for_each(|mut one| one.write_all(b"0").unwrap());
        // Until the clients close them, or reset them because they have not read.
        for one in &all {
            while BufReader::new(one).read_line(&mut String::new()).is_ok_and(|length| length > 0) {
            }
        }
    });
    let load = [(Habit::Silent, 1), (Habit::Pending, 1), (Habit::Deaf, 1)];
    let clients = clients(to, Load::standing(load));
    clients.settled().await.unwrap();
    let truth = ClientsTruth::of(&clients.finish().await.unwrap(), u64::MAX);
    assert_eq!((truth.opened, truth.asked, truth.answered), (3, 2, 0));
    assert_eq!(truth.closed_by_client, 3);
    served.join().unwrap();
}

#[tokio::test]
async fn half_closed_and_reset_are_the_clients_doing() {
    let (to, served) = server(2, |all| {
        for mut one in all {
            let line = asked(&one);
            one.write_all(line.as_bytes()).unwrap();
            // The end of what the client sends, or its reset.
            let _ = BufReader::new(&one).read_line(&mut String::new());
        }
    });
    let truth = truth(to, Load::standing([(Habit::HalfClosed, 1), (Habit::Abort, 1)])).await;
    assert_eq!((truth.answered, truth.cut_idle, truth.reset_by_client), (2, 1, 1));
    served.join().unwrap();
}

#[tokio::test]
async fn a_steady_client_asks_again_until_the_server_ends_it() {
    let (to, served) = server(1, |all| {
        for number in 0..3 {
            assert_eq!(asked(&all[0]), format!("{number}\n"));
            (&all[0]).write_all(format!("{number}   \n").as_bytes()).unwrap();
        }
        asked(&all[0]);
    });
    let habit = Habit::Steady { every: Duration::from_millis(1) };
    let truth = truth(to, Load::standing([(habit, 1)])).await;
    assert_eq!((truth.asked, truth.answered, truth.cut_mid_request), (4, 3, 1));
    served.join().unwrap();
}

#[test]
fn what_spans_a_moment_is_on_either_side() {
    let at = |before, after| ClientConnection {
        habit: Habit::Silent,
        from: None,
        opened: Between { before, after },
        opening: Opening::Connected,
        exchanges: Vec::new(),
        ended: None,
    };
    let truth = ClientsTruth::of(&[at(1, 2), at(9, 11), at(12, 13)], 10);
    assert_eq!(truth.opened_after_stop, Bounds { least: 1, most: 2 });
    assert!(truth.opened_after_stop.contain(2) && !truth.opened_after_stop.contain(3));
    assert_eq!(truth.last_opened, Some(Between { before: 12, after: 13 }));
}
