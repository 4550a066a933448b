//! The pure core stays pure: no I/O, no clock, no way to fail. Cargo keeps libraries that could away.

use std::{fs, path::Path};

const FORBIDDEN: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "SystemTime",
    "Instant",
    "println!",
    "eprintln!",
    "panic!(",
];
const FALLIBLE: [&str; 4] = [".unwrap()", ".expect(", "unreachable!", "todo!"];

#[test]
fn the_core_touches_nothing_but_its_inputs() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut open, mut files) = (vec![dir.join("src"), dir.join("../report/src")], 0);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap();
            for word in FORBIDDEN.iter().chain(&FALLIBLE) {
                assert!(!line.contains(word), "{}:{}: {word}", path.display(), number + 1);
            }
        }
        files += 1;
    }
    assert!(files > 10, "{files} files in {}", dir.display());
}
