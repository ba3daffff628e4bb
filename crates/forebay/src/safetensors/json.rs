//! The JSON of headers and indexes, read as it comes: only what is wanted is kept, and allocated fallibly.

use core::cell::Cell;
use core::fmt;
use std::path::Path;

use forebay_hal::Call;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::{Problem, WeightsError, shown};
use crate::{Error, Result, host_vec};

/// The largest header and index. That of safetensors' own library.
pub(super) const MAX_JSON: u64 = 100_000_000;

/// A file that is parsed, and the error that ended that: serde's own are texts.
pub(super) struct Parse<'a> {
    pub(super) path: &'a Path,
    stopped: Cell<Option<Error>>,
}

impl<'a> Parse<'a> {
    pub(super) fn of(path: &'a Path) -> Self {
        Self { path, stopped: Cell::new(None) }
    }

    /// The error for a problem of the file.
    pub(super) fn error(&self, problem: Problem) -> Error {
        WeightsError { path: self.path.to_owned(), problem }.into()
    }

    /// Ends the parse with an error.
    pub(super) fn stop<E: serde::de::Error>(&self, error: Error) -> E {
        self.stopped.set(Some(error));
        E::custom("stopped")
    }

    /// Reads a whole text, which is one object.
    pub(super) fn object(&self, text: &[u8], entries: &mut impl Entries) -> Result<()> {
        let text = core::str::from_utf8(text)
            .map_err(|error| self.error(Problem::NotText { at: error.valid_up_to() as u64 }))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = Object(self, entries).deserialize(&mut json).and_then(|()| json.end());
        parsed.map_err(|error| {
            self.stopped.take().unwrap_or_else(|| {
                let reason = error.to_string();
                let reason = reason.rsplit_once(" at line ").map_or(&*reason, |(reason, _)| reason);
                self.error(Problem::NotJson {
                    line: error.line() as u64,
                    column: error.column() as u64,
                    reason: shown(reason),
                })
            })
        })
    }
}

/// What takes the entries of an object.
pub(super) trait Entries {
    /// Takes the value of an entry from `map`.
    fn entry<'de, A: MapAccess<'de>>(
        &mut self,
        parse: &Parse<'_>,
        name: String,
        map: &mut A,
    ) -> core::result::Result<(), A::Error>;
}

/// An object.
pub(super) struct Object<'a, E>(pub(super) &'a Parse<'a>, pub(super) &'a mut E);

impl<'de, E: Entries> DeserializeSeed<'de> for Object<'_, E> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> core::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, E: Entries> Visitor<'de> for Object<'_, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> core::result::Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(text(self.0))? {
            self.1.entry(self.0, name, &mut map)?;
        }
        Ok(())
    }
}

/// A text, and what to make of it.
pub(super) struct Text<'a, F>(pub(super) &'a Parse<'a>, pub(super) F);

/// A text as it is.
pub(super) fn text<'a>(parse: &'a Parse<'a>) -> Text<'a, fn(&str) -> Result<String>> {
    Text(parse, |text| host_vec::text(text, Call::Allocate))
}

impl<'de, T, F: FnOnce(&str) -> Result<T>> DeserializeSeed<'de> for Text<'_, F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> core::result::Result<T, D::Error> {
        from.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Result<T>> Visitor<'_> for Text<'_, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> core::result::Result<T, E> {
        (self.1)(text).map_err(|error| self.0.stop(error))
    }
}

/// A list of at most `N` numbers; `too_many` is the error if there are more.
pub(super) struct Numbers<'a, const N: usize, F>(pub(super) &'a Parse<'a>, pub(super) F);

impl<'de, const N: usize, F: FnOnce() -> Problem> DeserializeSeed<'de> for Numbers<'_, N, F> {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        from: D,
    ) -> core::result::Result<Vec<u64>, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, const N: usize, F: FnOnce() -> Problem> Visitor<'de> for Numbers<'_, N, F> {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> core::result::Result<Vec<u64>, A::Error> {
        let Self(parse, too_many) = self;
        let (mut numbers, mut count) = ([0; N], 0);
        while let Some(number) = list.next_element::<u64>()? {
            let Some(place) = numbers.get_mut(count) else {
                return Err(parse.stop(parse.error(too_many())));
            };
            *place = number;
            count += 1;
        }
        let numbers = numbers.get(..count).unwrap_or_default();
        host_vec::copied(numbers, Call::Allocate).map_err(|error| parse.stop(error))
    }
}

/// An object of texts. The pairs are in the order of the file.
#[derive(Default)]
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl Entries for Pairs {
    fn entry<'de, A: MapAccess<'de>>(
        &mut self,
        parse: &Parse<'_>,
        name: String,
        map: &mut A,
    ) -> core::result::Result<(), A::Error> {
        let value = map.next_value_seed(text(parse))?;
        push(parse, &mut self.0, (name, value))
    }
}

/// Sets a field that is there once.
pub(super) fn set<T, E: serde::de::Error>(
    field: &mut Option<T>,
    name: &'static str,
    value: T,
) -> core::result::Result<(), E> {
    if field.replace(value).is_some() { Err(E::duplicate_field(name)) } else { Ok(()) }
}

/// Adds to a list, or ends the parse.
pub(super) fn push<T, E: serde::de::Error>(
    parse: &Parse<'_>,
    list: &mut Vec<T>,
    value: T,
) -> core::result::Result<(), E> {
    host_vec::push(list, value, Call::Allocate).map_err(|error| parse.stop(error))
}
