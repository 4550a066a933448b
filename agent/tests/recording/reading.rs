//! Files that are not what they should be: each says what it is, and gives what it has.

use super::{NODES, header, live, reader, record, replayed, said_live};
use coroner::outputs::recording::{Reader, VERSION, Writer};
use coroner_core::input::{Input, Loss, LossKind, Received};
use flate2::read::GzDecoder;
use std::io::{Cursor, Read};

fn plain(file: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

fn refused(file: &[u8]) -> String {
    Reader::new(Cursor::new(file.to_vec())).expect_err("it is refused").to_string()
}

#[test]
fn a_killed_agents_file_is_read_up_to_its_last_flush() {
    let (anchor, inputs) = live(NODES[0]);
    let (flushed, rest) = inputs.split_at(inputs.len() / 2);
    let mut file = Vec::new();
    let mut writer = Writer::begin(&mut file, &header(anchor)).unwrap();
    flushed.iter().for_each(|input| writer.input(input).unwrap());
    writer.flush().unwrap();
    rest.iter().take(3).for_each(|input| writer.input(input).unwrap());
    std::mem::forget(writer); // SIGKILL: nothing is finished
    let mut reader = reader(&file);
    let read: Vec<Received> = reader.by_ref().collect();
    assert_eq!(read, flushed);
    let status = reader.status();
    assert!(!status.is_whole());
    let said = status.to_string();
    assert!(said.contains("is truncated") && said.contains(&flushed.len().to_string()), "{said}");
}

#[test]
fn wherever_a_file_is_cut_a_beginning_of_it_is_read() {
    let (anchor, inputs) = live(NODES[3]);
    let file = record(anchor, &inputs);
    for cut in (0..file.len()).step_by(7) {
        let Ok(mut reader) = Reader::new(Cursor::new(file[..cut].to_vec())) else { continue };
        let read: Vec<Received> = reader.by_ref().collect();
        assert!(inputs.starts_with(&read), "cut at {cut}");
        let whole = reader.status().is_whole();
        assert!(!whole || read == inputs, "cut at {cut}");
    }
}

#[test]
fn what_is_no_recording_is_refused() {
    let other = b"{\"kind\":\"Pod\"}\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, other).unwrap();
    for file in
        [other.to_vec(), gzip.finish().unwrap(), b"\x1f\x8bno gzip at all".to_vec(), vec![0; 99]]
    {
        assert!(refused(&file).starts_with("not a recording"), "{file:?}");
    }
    assert!(refused(b"").starts_with("the file is empty"));
}

#[test]
fn another_version_is_refused_and_says_what_to_do() {
    let line = format!("{{\"coroner_recording\":{},\"agent\":\"9.1\\u001b[2J\"}}\n", VERSION + 1);
    let said = refused(line.as_bytes());
    assert!(said.contains(&format!("format {}, written by coroner 9.1", VERSION + 1)), "{said}");
    assert!(said.contains("at least as new"), "{said}");
    assert!(!said.contains('\x1b'), "a terminal must not obey it: {said:?}");
    let broken = b"{\"coroner_recording\":1}\n";
    assert!(refused(broken).starts_with("the first line is invalid"));
}

#[test]
fn a_recording_is_read_uncompressed_and_unknown_fields_are_ignored() {
    let (anchor, inputs) = live(NODES[0]);
    let text = plain(&record(anchor, &inputs));
    let newer: String = text
        .lines()
        .map(|line| line.replacen('{', "{\"since_9\":{\"x\":[1]},", 1) + "\n")
        .collect();
    assert_eq!(replayed(newer.as_bytes()), said_live(anchor, &inputs));
}

#[test]
fn a_line_that_is_not_understood_is_a_loss() {
    let (anchor, inputs) = live(NODES[0]);
    let mut lines: Vec<String> =
        plain(&record(anchor, &inputs)).lines().map(str::to_owned).collect();
    lines[5] = "{\"at\":1,\"telepathy\":{}}".into();
    let mut reader = reader((lines.join("\n") + "\n").as_bytes());
    let read: Vec<Received> = reader.by_ref().collect();
    assert_eq!(read.len(), inputs.len());
    assert_eq!(read[4].input, Input::Lost(Loss::new(LossKind::Unrecorded, 1)));
    assert!(reader.status().to_string().contains("cannot parse 1 lines of the recording"));
}

#[test]
fn a_gap_shows_in_the_timelines_that_it_may_have_touched() {
    let (anchor, inputs) = live(NODES[0]);
    let mut writer = Writer::begin(Vec::new(), &header(anchor)).unwrap();
    let term = inputs
        .iter()
        .position(|one| serde_json::to_string(one).unwrap().contains("\"signal\":15"))
        .unwrap();
    for (number, input) in inputs.iter().enumerate() {
        if number == term {
            writer.gap(input.at, 1).unwrap();
        } else {
            writer.input(input).unwrap();
        }
    }
    let file = writer.end(coroner::outputs::recording::Stopped::Agent).unwrap();
    let said = replayed(&file);
    assert!(said.iter().any(|line| line.contains("\"unrecorded\"")), "{said:#?}");
    let mut reader = reader(&file);
    reader.by_ref().for_each(drop);
    assert!(reader.status().to_string().contains("lacks 1 inputs"));
    assert!(!reader.status().is_whole());
}
