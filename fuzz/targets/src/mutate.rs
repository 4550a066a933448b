use serde_json::Value;

/// At these numbers arithmetic overflows, if it does anywhere.
const NUMBERS: [u64; 8] = [0, 1, 15, 64, 255, u32::MAX as u64, i64::MAX as u64, u64::MAX];
/// A terminal obeys them, or they are cut in the middle of a character.
const TEXTS: [&str; 4] = ["", "\u{1b}[2J\u{202e}", "a/b\n c", "ж"];

/// libFuzzer's mutator for lines of JSON: bytes alone seldom make another document. For half of the seeds one line gets
/// an odd value, is left out, comes twice, or changes places with the next. The new length; `None`: the bytes are as
/// they were.
pub fn mutated(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> Option<usize> {
    let [what, which @ .., how] = seed.to_le_bytes();
    let which = usize::from(u16::from_le_bytes(which));
    let mut lines: Vec<&[u8]> = data[..size].split(|byte| *byte == b'\n').collect();
    let (line, next) = (which % lines.len(), (which + 1) % lines.len());
    let odd;
    match what % 8 {
        0 => {
            odd = odd_line(lines[line], which / lines.len(), how)?;
            lines[line] = &odd;
        }
        1 => drop(lines.remove(line)),
        2 => {
            let again = lines[line];
            lines.insert(line, again);
        }
        3 => lines.swap(line, next),
        _ => return None,
    }
    let all = lines.join(&b'\n');
    let len = all.len().min(max_size);
    data[..len].copy_from_slice(&all[..len]);
    Some(len)
}

/// The line with an odd value; `None`: it is not JSON.
fn odd_line(line: &[u8], which: usize, how: u8) -> Option<Vec<u8>> {
    let mut document = serde_json::from_slice(line).ok()?;
    let mut words = Vec::new();
    let count = walk(&mut document, &mut |value| words.extend(value.as_str().map(str::to_owned)));
    let (mut at, which) = (0, which % count);
    walk(&mut document, &mut |value| {
        if at == which {
            replace(value, how.into(), &words);
        }
        at += 1;
    });
    serde_json::to_vec(&document).ok()
}

/// Visits each value before those within; how many.
fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Value)) -> usize {
    visit(value);
    let mut within = 0;
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| within += walk(value, visit)),
        Value::Object(all) => all.values_mut().for_each(|value| within += walk(value, visit)),
        _ => {}
    }
    within + 1
}

/// Puts another value of the same type in its place. The words are those of the document: the name of another state,
/// the id of something else.
fn replace(value: &mut Value, how: usize, words: &[String]) {
    match value {
        Value::Null => *value = NUMBERS[how % NUMBERS.len()].into(),
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => {
            *value = match (how / NUMBERS.len(), number.as_u64()) {
                (0, _) | (_, None) => NUMBERS[how % NUMBERS.len()].into(),
                (1, _) => i64::MIN.into(),
                (_, Some(number)) => (number ^ 1 << (how % 64)).into(),
            }
        }
        Value::String(text) => match how.checked_sub(TEXTS.len() + 1) {
            Some(which) => text.clone_from(&words[which % words.len()]),
            None => *text = TEXTS.get(how).map_or_else(|| "x".repeat(500), |&text| text.into()),
        },
        Value::Array(all) => match how % 4 {
            0 => all.clear(),
            1 => all.reverse(),
            2 => drop(all.pop()),
            _ => all.extend(all.last().cloned()),
        },
        Value::Object(_) => *value = Value::Null,
    }
}
