//! The mount table of a process, proc(5). Lines are bytes: a name need not be UTF-8, and is not to hide the others.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    /// Which directory of the file system is mounted (of nsfs: `net:[4026531840]`).
    pub(crate) root: PathBuf,
    pub(crate) at: PathBuf,
    pub(crate) kind: String,
}

/// All mounts; lines that are not understood are left out.
pub(crate) fn mounts(mountinfo: &[u8]) -> impl Iterator<Item = Mount> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(3);
        let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
        // A dash ends the optional fields.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Mount { root, at, kind: String::from_utf8_lossy(kind).into_owned() })
    })
}

/// Blanks, tabs, newlines and backslashes are written in octal.
fn unescape(text: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, more)) = rest.split_first() {
        let octal = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.filter(|_| *first == b'\\');
        let byte = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_understood_hides_no_other() {
        let text = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\ngarbage\n\
            33 22 0:29 /a\\040b /mnt/\xff\\134\\0 rw master:1 propagate_from:2 - cgroup2 x rw\n";
        let found: Vec<_> = mounts(text).collect();
        let name = OsString::from_vec(b"/mnt/\xff\\\\0".to_vec());
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[1],
            Mount { root: "/a b".into(), at: name.into(), kind: "cgroup2".to_owned() }
        );
    }
}
