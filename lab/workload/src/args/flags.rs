//! The flags of a behaviour, and what their values may be.

use super::{BeatEnd, Error, Term};
use crate::listen::{Door, Manner, OnStop, StopBehaviour, Takes};
use std::{
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};

const SIGTERM: u8 = 15;

/// Those that were given.
pub(super) struct Flags<'a> {
    behaviour: &'a str,
    given: Vec<(&'static str, &'a str)>,
}

impl<'a> Flags<'a> {
    pub(super) fn read(
        behaviour: &'a str,
        allowed: &[&'static str],
        words: &'a [String],
    ) -> Result<Flags<'a>, Error> {
        let mut flags = Flags { behaviour, given: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let flag = *allowed.iter().find(|flag| *flag == word).ok_or_else(|| {
                Error::UnknownFlag { behaviour: behaviour.into(), flag: word.clone() }
            })?;
            if flags.value(flag).is_some() {
                return Err(Error::Twice(word.clone()));
            }
            let value = words.next().ok_or_else(|| Error::NoValue(word.clone()))?;
            flags.given.push((flag, value));
        }
        Ok(flags)
    }

    fn value(&self, flag: &str) -> Option<&'a str> {
        self.given.iter().find(|(name, _)| *name == flag).map(|(_, value)| *value)
    }

    pub(super) fn required(&self, flag: &'static str) -> Result<&'a str, Error> {
        self.value(flag).ok_or_else(|| Error::Missing { behaviour: self.behaviour.into(), flag })
    }

    pub(super) fn duration(&self, flag: &'static str) -> Result<Duration, Error> {
        let value = self.required(flag)?;
        duration(value).ok_or(Error::Bad {
            flag,
            value: value.into(),
            wanted: "a duration such as 250ms or 2s",
        })
    }

    pub(super) fn duration_or_none(&self, flag: &'static str) -> Result<Duration, Error> {
        if self.value(flag).is_some() { self.duration(flag) } else { Ok(Duration::ZERO) }
    }

    pub(super) fn number<T: FromStr>(
        &self,
        flag: &'static str,
        wanted: &'static str,
    ) -> Result<T, Error> {
        let value = self.required(flag)?;
        value.parse().map_err(|_| Error::Bad { flag, value: value.into(), wanted })
    }

    pub(super) fn address(&self, default: IpAddr) -> Result<IpAddr, Error> {
        self.value("--at").map_or(Ok(default), |_| self.number("--at", "an IP address"))
    }

    fn number_or<T: FromStr>(
        &self,
        flag: &'static str,
        wanted: &'static str,
        default: T,
    ) -> Result<T, Error> {
        if self.value(flag).is_some() { self.number(flag, wanted) } else { Ok(default) }
    }

    pub(super) fn door(&self) -> Result<Door, Error> {
        let text = self.required("--ports")?;
        let ports: Result<Vec<u16>, _> = text.split(',').map(str::parse).collect();
        Ok(Door {
            at: self.address(Ipv6Addr::UNSPECIFIED.into())?,
            ports: ports.map_err(|_| Error::Bad {
                flag: "--ports",
                value: text.into(),
                wanted: "ports such as 8080 or 8080,8081",
            })?,
            sockets: self.number_or("--sockets", "a number of sockets", 1)?,
            backlog: self.number_or("--backlog", "a number of connections", 1024)?,
        })
    }

    pub(super) fn manner(&self) -> Result<Manner, Error> {
        const LENGTH: &str = "a length up to 16777216";
        let bytes = self.number_or("--bytes", LENGTH, 0)?;
        if bytes > 16 << 20 {
            return Err(Error::Bad { flag: "--bytes", value: bytes.to_string(), wanted: LENGTH });
        }
        let takes = match self.value("--takes") {
            None | Some("all") => Takes::All,
            Some("none") => Takes::None,
            Some("unread") => Takes::Unread,
            Some(value) => {
                let wanted = "all, none or unread";
                return Err(Error::Bad { flag: "--takes", value: value.into(), wanted });
            }
        };
        Ok(Manner { takes, work: self.duration_or_none("--work")?, bytes })
    }

    pub(super) fn stop(&self) -> Result<StopBehaviour, Error> {
        let on = match self.value("--on-stop") {
            None | Some("exit") => OnStop::Exit,
            Some("drain") => OnStop::Drain,
            Some("close") => OnStop::Close,
            Some("serve") => OnStop::Serve,
            Some("reset") => OnStop::Reset,
            Some(value) => {
                let wanted = "exit, drain, close, serve or reset";
                return Err(Error::Bad { flag: "--on-stop", value: value.into(), wanted });
            }
        };
        let after = self.value("--for").map(|_| self.duration("--for")).transpose()?;
        Ok(StopBehaviour { on, after, exit: self.exit()? })
    }

    pub(super) fn number_or_none(
        &self,
        flag: &'static str,
        wanted: &'static str,
    ) -> Result<Option<u32>, Error> {
        self.value(flag).map(|_| self.number(flag, wanted)).transpose()
    }

    pub(super) fn term(&self) -> Result<Term, Error> {
        match self.value("--term") {
            None | Some("none") => Ok(Term::None),
            Some("leave") => Ok(Term::Leave),
            Some("stay") => Ok(Term::Stay),
            Some("block") => Ok(Term::Block),
            Some(value) => Err(Error::Bad {
                flag: "--term",
                value: value.into(),
                wanted: "leave, stay, none or block",
            }),
        }
    }

    pub(super) fn end(&self) -> Result<BeatEnd, Error> {
        let exit = self.exit()?;
        match self.value("--end") {
            None | Some("exit") => Ok(BeatEnd::Exit(exit)),
            Some("crash") => Ok(BeatEnd::Crash),
            Some("oom") => Ok(BeatEnd::Oom),
            Some(value) => {
                Err(Error::Bad { flag: "--end", value: value.into(), wanted: "exit, crash or oom" })
            }
        }
    }

    /// Of those that a handler can be installed for, less the two of libc.
    pub(super) fn signal(&self) -> Result<u8, Error> {
        const WANTED: &str = "a signal's number, 1 to 31 without 9 and 19";
        self.signal_of(WANTED, |number| matches!(number, 1..=31) && number != 9 && number != 19)
    }

    pub(super) fn any_signal(&self) -> Result<u8, Error> {
        self.signal_of("a signal's number, 1 to 31", |number| matches!(number, 1..=31))
    }

    fn signal_of(&self, wanted: &'static str, fits: fn(u8) -> bool) -> Result<u8, Error> {
        if self.value("--on").is_none() {
            return Ok(SIGTERM);
        }
        let number = self.number("--on", wanted)?;
        if fits(number) {
            return Ok(number);
        }
        Err(Error::Bad { flag: "--on", value: number.to_string(), wanted })
    }

    pub(super) fn exit(&self) -> Result<u8, Error> {
        match self.value("--exit") {
            Some(_) => self.number("--exit", "an exit status of 0 to 255"),
            None => Ok(0),
        }
    }
}

/// `250ms`, `2s`, `3m`, `1h`; whole numbers only, the unit is not optional.
fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(milliseconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_fit() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("1h"), Some(Duration::from_secs(3600)));
        for bad in ["", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "18446744073709551615h"]
        {
            assert_eq!(duration(bad), None, "{bad:?}");
        }
    }
}
