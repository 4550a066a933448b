//! One client: opens a connection, follows its habit, and records each call.

use super::{
    Habit, Progress, Wish,
    record::{Between, ClientConnection, Ending, Exchange, Opening},
};
use coroner_workload::page::boot_now;
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
};

/// How long a connection may take to come about: some SYNs are lost where a backlog is full.
const CONNECT: Duration = Duration::from_secs(10);
/// A server that can send again is at its end when nothing has come for so long.
const QUIET: Duration = Duration::from_secs(1);
/// As much of an answer is read at once.
const PIECE: usize = 16 << 10;

pub(super) struct Client {
    to: SocketAddr,
    habit: Habit,
    wishes: watch::Receiver<Wish>,
    /// Of a standing connection that has not settled.
    progress: Option<watch::Sender<Progress>>,
    /// Of an answer that has not come as a whole.
    part: Vec<u8>,
    record: ClientConnection,
}

/// Why nothing more is read.
enum Over {
    /// The server ended it.
    Server(Ending),
    /// The client is asked to close it.
    Wanted,
}

impl Client {
    pub(super) fn new(
        to: SocketAddr,
        habit: Habit,
        wishes: watch::Receiver<Wish>,
        progress: Option<watch::Sender<Progress>>,
    ) -> Self {
        let opened = Between { before: 0, after: 0 };
        let opening = Opening::TimedOut;
        let record = ClientConnection {
            habit,
            from: None,
            opened,
            opening,
            exchanges: Vec::new(),
            ended: None,
        };
        Self { to, habit, wishes, progress, part: Vec::new(), record }
    }

    /// From the beginning to the end.
    pub(super) async fn live(mut self) -> ClientConnection {
        if let Some(stream) = self.open().await {
            self.record.ended = Some(self.keep(stream).await);
        }
        self.settle();
        self.record
    }

    async fn open(&mut self) -> Option<TcpStream> {
        let before = boot_now();
        let opened = tokio::time::timeout(CONNECT, TcpStream::connect(self.to)).await;
        self.record.opened = Between { before, after: boot_now() };
        let stream = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.record.opening = match error.kind() {
                    ErrorKind::ConnectionRefused => Opening::Refused,
                    ErrorKind::TimedOut => Opening::TimedOut,
                    other => Opening::Failed(other),
                };
                return None;
            }
            Err(_) => return None,
        };
        self.record.opening = Opening::Connected;
        self.record.from = stream.local_addr().ok();
        // Each request is a segment of its own; where that cannot be set, it only comes later.
        let _ = stream.set_nodelay(true);
        Some(stream)
    }

    /// Follows the habit, until it or the server ends the connection.
    async fn keep(&mut self, mut stream: TcpStream) -> (Between, Ending) {
        if self.habit == Habit::Silent {
            self.settle();
            return self.wait(stream).await;
        }
        loop {
            if let Err(ended) = self.ask(&mut stream).await {
                return ended;
            }
            match self.habit {
                Habit::Pending => self.settle(),
                Habit::HalfClosed => {
                    // What fails here is seen by the next read.
                    let _ = stream.shutdown().await;
                    self.settle();
                }
                Habit::Deaf => {
                    tokio::select! {
                        // A failure is seen by the read.
                        _ = stream.readable() => {}
                        () = closing(&mut self.wishes) => {}
                    }
                    self.settle();
                    closing(&mut self.wishes).await;
                    return self.read_what_came(stream).await;
                }
                _ => {}
            }
            let open = self.record.exchanges.len();
            let before = boot_now();
            if let Err(over) = self.read(&mut stream, open, None).await {
                return self.end(stream, before, over);
            }
            self.settle();
            match self.habit {
                Habit::Steady { every } => {
                    let before = boot_now();
                    if let Err(over) = self.read(&mut stream, usize::MAX, Some(every)).await {
                        return self.end(stream, before, over);
                    }
                }
                Habit::Once => return leave(stream).await,
                Habit::Abort => {
                    let _ = stream.set_zero_linger();
                    let before = boot_now();
                    drop(stream);
                    return (Between { before, after: boot_now() }, Ending::ResetByClient);
                }
                _ => return self.wait(stream).await,
            }
        }
    }

    /// Sends the next request.
    async fn ask(&mut self, stream: &mut TcpStream) -> Result<(), (Between, Ending)> {
        let request = format!("{}\n", self.record.exchanges.len());
        let before = boot_now();
        let sent = stream.write_all(request.as_bytes()).await;
        let asked = Between { before, after: boot_now() };
        match sent {
            Ok(()) => {
                self.record.exchanges.push(Exchange { asked, answered: None, is_good: false });
                Ok(())
            }
            Err(error) => Err((asked, ending(&error))),
        }
    }

    /// Reads on until somebody ends it.
    async fn wait(&mut self, mut stream: TcpStream) -> (Between, Ending) {
        let before = boot_now();
        match self.read(&mut stream, usize::MAX, None).await {
            Ok(()) => self.end(stream, before, Over::Wanted),
            Err(over) => self.end(stream, before, over),
        }
    }

    /// Reads until so many requests have been answered, or that much time has passed.
    async fn read(
        &mut self,
        stream: &mut TcpStream,
        answers: usize,
        at_most: Option<Duration>,
    ) -> Result<(), Over> {
        let pause = async {
            match at_most {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(pause);
        let mut bytes = vec![0; PIECE];
        while self.answered() < answers {
            let before = boot_now();
            tokio::select! {
                // What the server did comes before what is wanted here: it was earlier.
                biased;
                read = stream.read(&mut bytes) => match read {
                    Ok(0) => return Err(Over::Server(Ending::Eof)),
                    Ok(length) => self.take(&bytes[..length], before),
                    Err(error) => return Err(Over::Server(ending(&error))),
                },
                () = closing(&mut self.wishes) => return Err(Over::Wanted),
                () = &mut pause => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads all that was sent meanwhile, and whatever comes of a server that can send on now.
    async fn read_what_came(&mut self, mut stream: TcpStream) -> (Between, Ending) {
        let mut bytes = vec![0; PIECE];
        loop {
            let before = boot_now();
            let over = match tokio::time::timeout(QUIET, stream.read(&mut bytes)).await {
                Err(_) => Over::Wanted,
                Ok(Ok(0)) => Over::Server(Ending::Eof),
                Ok(Err(error)) => Over::Server(ending(&error)),
                Ok(Ok(length)) => {
                    self.take(&bytes[..length], before);
                    continue;
                }
            };
            return self.end(stream, before, over);
        }
    }

    fn answered(&self) -> usize {
        self.record.exchanges.iter().take_while(|exchange| exchange.answered.is_some()).count()
    }

    fn take(&mut self, bytes: &[u8], before: u64) {
        let answered = Between { before, after: boot_now() };
        for byte in bytes {
            if *byte != b'\n' {
                self.part.push(*byte);
                continue;
            }
            let answer = String::from_utf8_lossy(&std::mem::take(&mut self.part)).into_owned();
            let number = self.answered();
            if let Some(exchange) = self.record.exchanges.get_mut(number) {
                exchange.answered = Some(answered);
                exchange.is_good = answer.trim_end() == number.to_string();
            }
        }
    }

    fn end(&self, stream: TcpStream, before: u64, over: Over) -> (Between, Ending) {
        match over {
            Over::Server(ending) => (Between { before, after: boot_now() }, ending),
            Over::Wanted => {
                let before = boot_now();
                drop(stream);
                (Between { before, after: boot_now() }, Ending::ClosedByClient)
            }
        }
    }

    /// It is where its habit leads to, for the first time.
    fn settle(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.send_modify(|progress| progress.settled += 1);
        }
    }
}

/// Closes a connection, and waits for the server's end of it: by then the server's kernel has seen that it was closed.
async fn leave(mut stream: TcpStream) -> (Between, Ending) {
    let before = boot_now();
    // What fails here, the server has ended before.
    let _ = stream.shutdown().await;
    let _ = tokio::time::timeout(CONNECT, stream.read(&mut [0])).await;
    (Between { before, after: boot_now() }, Ending::ClosedByClient)
}

/// Until what is open is to be closed, or nobody is there to want anything.
async fn closing(wishes: &mut watch::Receiver<Wish>) {
    let _ = wishes.wait_for(|wish| wish.close).await;
}

fn ending(error: &io::Error) -> Ending {
    match error.kind() {
        // A write after the server's reset has been seen gives EPIPE.
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ending::Reset,
        other => Ending::Failed(other),
    }
}
