//! Forms of fields in JSON.

use serde::{Deserialize, Deserializer, Serializer, de::IgnoredAny};
use std::time::Duration;

pub(crate) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        // Rounded once: `as_secs_f64` adds two parts, and shows it in the last digits.
        to.serialize_f64(time.as_nanos() as f64 / 1e9)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

/// The items that this version can read: a newer agent may add kinds.
pub(crate) fn known<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Item<T> {
        Known(T),
        Newer(IgnoredAny),
    }
    let items = Vec::<Item<T>>::deserialize(from)?.into_iter();
    let known = items.filter_map(|item| match item {
        Item::Known(item) => Some(item),
        Item::Newer(_) => None,
    });
    Ok(known.collect())
}

pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_what_was_measured() {
        for ns in [0, 1, 6_193_418_678, 86_400_000_000_001] {
            let time = Duration::from_nanos(ns);
            let json = serde_json::to_value(ns as f64 / 1e9).unwrap();
            assert_eq!(seconds::serialize(&time, serde_json::value::Serializer).unwrap(), json);
            assert_eq!(seconds::deserialize(json).unwrap(), time);
        }
    }
}
