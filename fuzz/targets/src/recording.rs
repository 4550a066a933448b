use crate::checks::plain;
use coroner::outputs::recording::{Header, Reader, RecordingStatus, Stopped, Writer};
use coroner_core::input::Received;
use std::io::Cursor;

/// Recordings: any bytes → reader. What was read can be written and read again.
pub fn recording(bytes: &[u8]) {
    let (header, inputs, status) = match read(bytes) {
        Ok(read) => read,
        Err(problem) => return plain(&problem),
    };
    plain(&status.to_string());
    let unread = inputs.len() as u64 - status.inputs;
    assert!(status.misread <= unread, "{status:?}");

    // The same again, whole.
    let mut writer = Writer::begin(Vec::new(), &header).expect("memory can be written to");
    inputs.iter().for_each(|input| writer.input(input).expect("memory"));
    let written = writer.end(Stopped::Agent).expect("memory");
    let (same_header, same, whole) = read(&written).expect("what was written can be read");
    assert_eq!((same_header, &same), (header.clone(), &inputs));
    assert!(whole.is_whole(), "{whole:?}");
}

type Read = (Header, Vec<Received>, RecordingStatus);

fn read(bytes: &[u8]) -> Result<Read, String> {
    let mut reader =
        Reader::new(Cursor::new(bytes.to_vec())).map_err(|problem| problem.to_string())?;
    let inputs = reader.by_ref().collect();
    Ok((reader.header().clone(), inputs, reader.status().clone()))
}
