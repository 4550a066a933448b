//! JSON of the apiserver, decoded by serde while it arrives: one item of a list or one line of a watch at a time.
//!
//! Memory is bounded by what the types keep ([`Text`], [`Few`]), and before that by [`MAX_ITEM`], because serde_json collects a
//! string before it can be cut. Fields that no type names are passed over without being held, whatever their length and depth.
//! A value of the wrong type makes the item that it is in unsound, and spoils nothing else.

use super::request::RequestFailure;
use crate::sources::cut::{Cut, Cuts};
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess,
        SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use std::{
    cell::Cell,
    fmt,
    io::{self, BufReader, Read},
    marker::PhantomData,
    ops::Deref,
};

/// The most bytes that are read of one item or line. etcd takes objects of 1.5 MiB, which JSON escapes to at most six times that.
const MAX_ITEM: usize = 16 << 20;
const BUFFER: usize = 16 << 10;

/// What happened while the current item was decoded.
#[derive(Clone, Copy)]
struct Tally {
    left: usize,
    is_unsound: bool,
    cuts: [u64; Cut::ALL.len()],
}

thread_local! {
    /// The thread's, because serde's derive hands nothing down to the fields of a type.
    static TALLY: Cell<Tally> = const { Cell::new(Tally::NEW) };
}

impl Tally {
    const NEW: Self = Self { left: MAX_ITEM, is_unsound: false, cuts: [0; Cut::ALL.len()] };

    fn change<T>(change: impl FnOnce(&mut Self) -> T) -> T {
        let mut tally = TALLY.get();
        let value = change(&mut tally);
        TALLY.set(tally);
        value
    }
}

/// Fails if an item is longer than [`MAX_ITEM`].
struct Bounded<R>(R);

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        let left = Tally::change(|tally| {
            tally.left = tally.left.saturating_sub(read);
            tally.left
        });
        if left == 0 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(read) }
    }
}

pub(super) struct Item<T> {
    pub(super) value: T,
    /// No value in it is of the wrong type.
    pub(super) is_sound: bool,
}

impl<T> Item<Lenient<T>> {
    pub(super) fn sound(self) -> Option<T> {
        self.value.0.filter(|_| self.is_sound)
    }
}

fn item<T, E>(
    cuts: &Cuts,
    decode: impl FnOnce() -> Result<Option<T>, E>,
) -> Result<Option<Item<T>>, E> {
    TALLY.set(Tally::NEW);
    let value = decode()?;
    let tally = TALLY.replace(Tally::NEW);
    Cut::ALL.iter().zip(tally.cuts).for_each(|(cut, count)| cuts.add(*cut, count));
    Ok(value.map(|value| Item { value, is_sound: !tally.is_unsound }))
}

fn reader(body: impl Read) -> BufReader<Bounded<impl Read>> {
    TALLY.set(Tally::NEW);
    BufReader::with_capacity(BUFFER, Bounded(body))
}

pub(super) fn object<T: DeserializeOwned>(
    body: impl Read,
    cuts: &Cuts,
) -> Result<Option<T>, RequestFailure> {
    let decoded = item(cuts, || serde_json::from_reader::<_, Lenient<T>>(reader(body)).map(Some))?;
    Ok(decoded.and_then(Item::sound))
}

/// Decodes the lines of a watch until `take` wants no more.
pub(super) fn lines<T: DeserializeOwned>(
    body: impl Read,
    cuts: &Cuts,
    mut take: impl FnMut(Result<Item<T>, RequestFailure>) -> bool,
) {
    let mut lines = serde_json::Deserializer::from_reader(reader(body)).into_iter::<T>();
    while let Some(line) = item(cuts, || lines.next().transpose()).transpose() {
        let failed = line.is_err();
        if !take(line.map_err(Into::into)) || failed {
            return;
        }
    }
}

/// Decodes a list, whose items `take` gets one by one; `None`: one that is unsound.
pub(super) fn list<T: DeserializeOwned>(
    body: impl Read,
    cuts: &Cuts,
    take: impl FnMut(Option<T>) -> Result<(), RequestFailure>,
) -> Result<ListMetadata, RequestFailure> {
    let mut document = serde_json::Deserializer::from_reader(reader(body));
    let (metadata, failure) = (Lenient::default(), None);
    let mut list = ListVisitor { cuts, take, metadata, failure, of: PhantomData };
    let decoded = (&mut list).deserialize(&mut document).and_then(|()| document.end());
    if let Some(failure) = list.failure {
        return Err(failure);
    }
    decoded?;
    let sound = list.metadata.0.filter(|metadata| metadata.resource_version.filled().is_some());
    sound.ok_or(RequestFailure::Unexpected("a list with a resourceVersion"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMetadata {
    resource_version: Lenient<Text<64>>,
    #[serde(rename = "continue")]
    following: Lenient<Text<4096>>,
}

impl ListMetadata {
    pub(super) fn version(&self) -> String {
        self.resource_version.text().to_owned()
    }

    /// Where the next page begins.
    pub(super) fn following(&self) -> Option<String> {
        self.following.filled().map(str::to_owned)
    }
}

/// Visits the object that a list is, and the array in it.
struct ListVisitor<'a, T, F> {
    cuts: &'a Cuts,
    take: F,
    metadata: Lenient<ListMetadata>,
    failure: Option<RequestFailure>,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(Option<T>) -> Result<(), RequestFailure>>
    DeserializeSeed<'de> for &mut ListVisitor<'_, T, F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(Option<T>) -> Result<(), RequestFailure>> Visitor<'de>
    for &mut ListVisitor<'_, T, F>
{
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(()) // no items
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<16, false>>()? {
            match &*key {
                "metadata" => self.metadata = map.next_value()?,
                "items" => map.next_value_seed(&mut *self)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(one) = item(self.cuts, || items.next_element::<Lenient<T>>())? {
            if let Err(failure) = (self.take)(one.sound()) {
                self.failure = Some(failure);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// A value of this type; `None`: there is none, or one of another type, which makes the item unsound.
#[derive(Debug)]
pub(super) struct Lenient<T>(pub(super) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for Lenient<T> {
    type Target = Option<T>;

    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As an option, because a field of that type may be missing.
        deserializer.deserialize_option(LenientVisitor(PhantomData))
    }
}

struct LenientVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> LenientVisitor<T> {
    fn scalar<E: Error>(value: impl IntoDeserializer<'de, E>) -> Result<Lenient<T>, E> {
        Ok(Self::or_unsound(T::deserialize(value.into_deserializer()).ok()))
    }

    fn or_unsound(value: Option<T>) -> Lenient<T> {
        if value.is_none() {
            Tally::change(|tally| tally.is_unsound = true);
        }
        Lenient(value)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = Lenient<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("anything")
    }

    fn visit_none<E>(self) -> Result<Lenient<T>, E> {
        Ok(Lenient(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Lenient<T>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Lenient<T>, E> {
        Self::scalar(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Lenient<T>, E> {
        Self::scalar(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Lenient<T>, E> {
        Self::scalar(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Lenient<T>, E> {
        Self::scalar(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Lenient<T>, E> {
        Self::scalar(value)
    }

    // What is left of an object or list of the wrong type is passed over, so that the next value can be read.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lenient<T>, A::Error> {
        let value = T::deserialize(MapAccessDeserializer::new(&mut map)).ok();
        while value.is_none() && map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::or_unsound(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lenient<T>, A::Error> {
        let value = T::deserialize(SeqAccessDeserializer::new(&mut list)).ok();
        while value.is_none() && list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::or_unsound(value))
    }
}

/// The first so many bytes of a string, at the end of a character. What is cut is counted, unless only the beginning matters.
#[derive(Debug)]
pub(super) struct Text<const MAX: usize, const COUNTED: bool = true>(String);

impl<const MAX: usize, const COUNTED: bool> Deref for Text<MAX, COUNTED> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de, const MAX: usize, const COUNTED: bool> Deserialize<'de> for Text<MAX, COUNTED> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor<const MAX: usize, const COUNTED: bool>;

impl<const MAX: usize, const COUNTED: bool> Visitor<'_> for TextVisitor<MAX, COUNTED> {
    type Value = Text<MAX, COUNTED>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        let kept = &text[..text.floor_char_boundary(MAX)];
        if COUNTED && kept.len() < text.len() {
            Tally::change(|tally| tally.cuts[Cut::Text as usize] += 1);
        }
        Ok(Text(kept.to_owned()))
    }
}

impl<const MAX: usize, const COUNTED: bool> Lenient<Text<MAX, COUNTED>> {
    pub(super) fn text(&self) -> &str {
        self.as_deref().unwrap_or_default()
    }

    pub(super) fn filled(&self) -> Option<&str> {
        self.as_deref().filter(|text| !text.is_empty())
    }
}

/// The first so many items of a list. Those beyond are counted as `CUT`, unless that is [`UNCOUNTED`].
#[derive(Debug)]
pub(super) struct Few<T, const MAX: usize, const CUT: usize>(Vec<Lenient<T>>);

/// For lists of which only the first item matters.
pub(super) const UNCOUNTED: usize = usize::MAX;

impl<'de, T: Deserialize<'de>, const MAX: usize, const CUT: usize> Deserialize<'de>
    for Few<T, MAX, CUT>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FewVisitor(PhantomData))
    }
}

struct FewVisitor<T, const MAX: usize, const CUT: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize, const CUT: usize> Visitor<'de>
    for FewVisitor<T, MAX, CUT>
{
    type Value = Few<T, MAX, CUT>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX
            && let Some(one) = list.next_element()?
        {
            kept.push(one);
        }
        let mut cut = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            cut += 1;
        }
        Tally::change(|tally| tally.cuts.get_mut(CUT).map(|count| *count += cut));
        Ok(Few(kept))
    }
}

impl<T, const MAX: usize, const CUT: usize> Lenient<Few<T, MAX, CUT>> {
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.iter().flat_map(|few| &few.0).filter_map(|one| one.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Thing {
        name: Lenient<Text<4>>,
        number: Lenient<i64>,
        list: Lenient<Few<Text<4>, 2, { Cut::Finalizers as usize }>>,
        inner: Lenient<Inner>,
    }

    #[derive(Deserialize)]
    struct Inner {
        flag: Lenient<bool>,
    }

    fn things(items: &str) -> (Vec<Option<String>>, Cuts) {
        let body =
            format!(r#"{{"x":[{{}}],"items":{items},"metadata":{{"resourceVersion":"7"}}}}"#);
        let (mut things, cuts) = (Vec::new(), Cuts::default());
        let list = list(body.as_bytes(), &cuts, |thing: Option<Thing>| {
            things.push(thing.map(|thing| {
                let flag = thing.inner.as_ref().and_then(|inner| *inner.flag);
                let list: Vec<_> = thing.list.all().map(|text| &**text).collect();
                format!("{} {:?} {list:?} {flag:?}", thing.name.text(), *thing.number)
            }));
            Ok(())
        });
        assert_eq!(list.unwrap().version(), "7");
        (things, cuts)
    }

    #[test]
    fn a_value_of_the_wrong_type_spoils_its_item_only() {
        let good =
            r#"{"more":{"a":[1]},"name":"a","number":1,"list":["b",null],"inner":{"flag":true}}"#;
        for bad in [
            r#"{"name":1}"#,
            r#"{"name":["a",[1],{"b":"c"}]}"#,
            r#"{"name":{"a":{"b":[1]}},"number":1}"#,
            r#"{"number":"1"}"#,
            r#"{"number":1.5}"#,
            r#"{"number":9223372036854775808}"#,
            r#"{"list":{"a":1}}"#,
            r#"{"list":[1,[2]],"number":1}"#,
            r#"{"inner":"a"}"#,
            r#"{"inner":{"flag":{"a":[]}}}"#,
            "1",
            r#""a""#,
        ] {
            let (things, _) = things(&format!("[{good},{bad},{good}]"));
            let expected = Some(r#"a Some(1) ["b"] Some(true)"#.to_owned());
            assert_eq!(things, [expected.clone(), None, expected], "{bad}");
        }
        assert_eq!(things("[{}]").0, [Some(" None [] None".to_owned())]);
        assert!(things("null").0.is_empty());
    }

    #[test]
    fn an_item_has_an_end() {
        let endless = br#"{"items":[{},{"name":""#;
        let body = endless.as_slice().chain(io::repeat(b'x'));
        let mut read = 0;
        let list = list(body, &Cuts::default(), |_: Option<Thing>| {
            read += 1;
            Ok(())
        });
        assert!(
            matches!(list, Err(RequestFailure::Unexpected("an object below 16 MiB"))) && read == 1
        );
    }
}
