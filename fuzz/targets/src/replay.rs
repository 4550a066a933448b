use crate::report::printed;
use coroner::outputs::recording::{Reader, replay::Replay};
use std::{io::Cursor, time::Duration};

/// A recording by anybody → what `coroner replay` prints of it.
pub fn replay(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(Cursor::new(bytes.to_vec())) else { return };
    let mut replay = Replay::new(reader.header());
    replay.run(&mut reader);
    replay.go_on(Duration::from_secs(60));
    replay.timelines().for_each(|termination| printed(termination));
    replay.without_account();
}
