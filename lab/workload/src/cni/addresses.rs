//! The addresses of the lab's pods: a directory with a file for each that is taken, in which the
//! sandbox's id stands. What is left there without a sandbox has leaked.

use super::CniFailure;
use coroner_workload::network::{ELSEWHERE, NETWORK, NODE, PREFIX};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::Ipv4Addr,
    path::Path,
};

/// While a file of this name and a pod's is in the directory, that pod's address is not given back.
const FAIL_DEL: &str = "fail-del-";

/// The directory.
pub(super) struct Addresses<'a>(&'a Path);

impl<'a> Addresses<'a> {
    pub(super) fn new(directory: &'a Path) -> Self {
        Self(directory)
    }

    /// Takes the first free one for a sandbox.
    pub(super) fn take(&self, sandbox: &str) -> Result<Ipv4Addr, CniFailure> {
        fs::create_dir_all(self.0).map_err(|error| self.failure("make", &error))?;
        for address in all() {
            let file = self.0.join(address.to_string());
            // Other sandboxes are being started at the same time: who makes the file has it.
            match File::create_new(file).and_then(|mut file| file.write_all(sandbox.as_bytes())) {
                Ok(()) => return Ok(address),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.failure("write to", &error)),
            }
        }
        let [a, b] = NETWORK;
        Err(CniFailure::new(
            CniFailure::NETWORK,
            format_args!("no address of {a}.{b}.0.0/{PREFIX} is free: see {}", self.0.display()),
        ))
    }

    /// Fails as long as the lab wants it to.
    pub(super) fn may_give_back(&self, pod: &str) -> Result<(), CniFailure> {
        let file = self.0.join(format!("{FAIL_DEL}{pod}"));
        if file.exists() {
            return Err(CniFailure::new(
                CniFailure::LATER,
                format_args!("told to fail by {}", file.display()),
            ));
        }
        Ok(())
    }

    /// Gives back what a sandbox has. Nothing is no error.
    pub(super) fn give_back(&self, sandbox: &str) -> Result<(), CniFailure> {
        for address in self.of(sandbox)? {
            match fs::remove_file(self.0.join(address.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failure("remove from", &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a sandbox has one, as it should.
    pub(super) fn check(&self, sandbox: &str) -> Result<(), CniFailure> {
        if self.of(sandbox)?.is_empty() {
            return Err(CniFailure::new(
                CniFailure::LATER,
                format_args!("the sandbox {sandbox} has no address"),
            ));
        }
        Ok(())
    }

    fn of(&self, sandbox: &str) -> Result<Vec<Ipv4Addr>, CniFailure> {
        let entries = match fs::read_dir(self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failure("list", &error)),
        };
        Ok(entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<Ipv4Addr>().ok())
            .filter(|address| {
                fs::read_to_string(self.0.join(address.to_string())).is_ok_and(|of| of == sandbox)
            })
            .collect())
    }

    fn failure(&self, what: &str, error: &io::Error) -> CniFailure {
        CniFailure::io(format_args!("cannot {what} {}", self.0.display()), error)
    }
}

/// All that a pod may have, the lowest first: without the network's own, the node's and those of clients
/// elsewhere, and without those that look like a broadcast address.
fn all() -> impl Iterator<Item = Ipv4Addr> {
    let [a, b] = NETWORK;
    (0..ELSEWHERE)
        .flat_map(move |c| (1..u8::MAX).map(move |d| Ipv4Addr::new(a, b, c, d)))
        .filter(|address| *address != NODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_sandbox_s_until_it_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("addresses");
        let addresses = Addresses::new(&directory);
        let first = addresses.take("a").unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 0, 2));
        assert_eq!(addresses.take("b").unwrap(), Ipv4Addr::new(10, 244, 0, 3));
        assert_eq!(addresses.check("a"), Ok(()));
        assert_eq!(fs::read_to_string(directory.join("10.244.0.2")).unwrap(), "a");
        for _ in 0..2 {
            assert_eq!(addresses.give_back("a"), Ok(()), "a second time as well");
        }
        assert_eq!(addresses.check("a").unwrap_err().code, CniFailure::LATER);
        assert_eq!(addresses.check("b"), Ok(()));
        assert_eq!(addresses.take("c").unwrap(), first);
    }

    #[test]
    fn giving_back_fails_as_long_as_it_is_told_to() {
        let directory = tempfile::tempdir().unwrap();
        let addresses = Addresses::new(directory.path());
        addresses.take("a").unwrap();
        let told = directory.path().join(format!("{FAIL_DEL}web"));
        fs::write(&told, "").unwrap();
        let failure = addresses.may_give_back("web").unwrap_err();
        assert_eq!(failure.code, CniFailure::LATER);
        assert!(failure.msg.contains(FAIL_DEL), "{}", failure.msg);
        assert_eq!(addresses.may_give_back("other"), Ok(()));
        assert_eq!(addresses.check("a"), Ok(()), "it is still taken");
        fs::remove_file(told).unwrap();
        assert_eq!(addresses.may_give_back("web"), Ok(()));
        addresses.give_back("a").unwrap();
        assert!(addresses.check("a").is_err());
    }

    #[test]
    fn what_was_never_there_is_given_back() {
        let addresses = Addresses::new(Path::new("/nonexistent/addresses"));
        assert_eq!(addresses.give_back("a"), Ok(()));
    }

    #[test]
    fn where_no_directory_can_be_nothing_is_taken() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let addresses = Addresses::new(file.path());
        assert_eq!(addresses.take("a").unwrap_err().code, CniFailure::IO);
        assert_eq!(addresses.give_back("a").unwrap_err().code, CniFailure::IO);
    }

    #[test]
    fn there_are_enough_and_none_is_special() {
        let all: Vec<Ipv4Addr> = all().collect();
        assert_eq!(all.len(), 255 * 254 - 1);
        assert!(all.iter().all(|address| !matches!(address.octets()[3], 0 | 255)));
        assert!(!all.contains(&Ipv4Addr::new(10, 244, 0, 1)), "the node's");
        assert!(all.iter().all(|address| address.octets()[2] != ELSEWHERE));
    }
}
