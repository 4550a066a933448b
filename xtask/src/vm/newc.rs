//! A cpio archive in the `newc` format, as the kernel unpacks it (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An initramfs in the making.
#[derive(Debug, Default)]
pub(crate) struct CpioArchive {
    bytes: Vec<u8>,
    entries: u32,
    folders: std::collections::BTreeSet<String>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl CpioArchive {
    /// Adds an executable file, and the folders above it. `path` has no leading slash.
    pub(crate) fn program(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, PROGRAM, content);
    }

    /// Adds an empty folder, and those above it.
    pub(crate) fn folder(&mut self, path: &str) {
        self.parents(path);
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, &[]);
        }
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // The field has 32 bits; a larger file does not fit into the guest's memory either.
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let links = 1;
        #[rustfmt::skip]
        let fields = [
            self.entries, mode, 0, 0, links, 0, size,
            0, 0, 0, 0, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back: (name, mode, content).
    fn read(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut entries) = (0, Vec::new());
        while at < bytes.len() {
            let field = |n: usize| {
                let text = &bytes[at + 6 + 8 * n..at + 14 + 8 * n];
                u32::from_str_radix(std::str::from_utf8(text).expect("ASCII"), 16).expect("hex")
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = &bytes[at + 110..at + 110 + name_size - 1];
            let data = (at + 110 + name_size).next_multiple_of(4);
            entries.push((
                String::from_utf8(name.to_vec()).expect("UTF-8"),
                mode,
                bytes[data..data + size].to_vec(),
            ));
            at = (data + size).next_multiple_of(4);
        }
        entries
    }

    #[test]
    fn what_goes_in_comes_out_with_its_folders_first_and_once() {
        let mut archive = CpioArchive::default();
        archive.program("usr/bin/a", b"12345");
        archive.program("usr/bin/b", b"");
        archive.folder("usr/bin");
        let entries = read(&archive.finish());
        let names: Vec<_> = entries.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["usr", "usr/bin", "usr/bin/a", "usr/bin/b", "TRAILER!!!"]);
        assert_eq!(entries[2], ("usr/bin/a".into(), PROGRAM, b"12345".to_vec()));
        assert_eq!(entries[3], ("usr/bin/b".into(), PROGRAM, Vec::new()));
    }
}
