//! Tar archives that depend on their content alone.

use flate2::{GzBuilder, write::GzEncoder};
use jiff::Timestamp;
use std::io::{self, Write as _};

/// How a layer is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Not at all: quick to make, for images that never travel.
    None,
    /// With gzip, which every runtime and registry reads.
    Gzip,
}

impl Compression {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::None => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
        }
    }

    pub(crate) fn apply(self, tar: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(tar),
            Self::Gzip => {
                // A header without a time, a name or the machine's own system in it.
                let mut gzip: GzEncoder<Vec<u8>> = GzBuilder::new()
                    .mtime(0)
                    .operating_system(255)
                    .write(Vec::new(), flate2::Compression::best());
                gzip.write_all(&tar)?;
                gzip.finish()
            }
        }
    }
}

/// A tar of regular files (name, content, mode) in that order, of root's, changed last at `time`.
pub(crate) fn of(files: &[(&str, &[u8], u32)], time: Timestamp) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        // What was before 1970 is told as 1970: the field has no sign.
        header.set_mtime(u64::try_from(time.as_second()).unwrap_or(0));
        archive.append_data(&mut header, name, *content)?;
    }
    archive.into_inner()
}
