//! A key: its name and meaning, the setting that its value goes to, and how the value in force is shown.

use super::draft::Draft;
use super::flags::BookieArgs;
use crate::parse::{Share, share};
use crate::sources::values::{Values, truth};
use bindery_tls::store::{Password, PasswordSource};
use std::path::PathBuf;
use std::time::Duration;

/// How a key is treated.
#[derive(Debug, Clone, Copy)]
pub enum Status {
    /// It does what it does in BookKeeper.
    Applied,
    /// Its purpose is achieved by other means: how.
    Translated(&'static str),
    /// There is nothing for it to do: why.
    NoMeaning(&'static str),
    /// A value that asks for something that does not exist here prevents the start: why, and what to do instead.
    Refused(&'static str),
    /// BookKeeper does not have it.
    Ours,
}

impl Status {
    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Status::Applied => "applied",
            Status::Translated(_) => "translated",
            Status::NoMeaning(_) => "no effect",
            Status::Refused(_) => "refused",
            Status::Ours => "Bindery's own",
        }
    }

    /// Why, how, or what instead.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Status::Applied | Status::Ours => None,
            Status::Translated(reason) | Status::NoMeaning(reason) | Status::Refused(reason) => Some(reason),
        }
    }
}

/// The setting that switches a kind of protection on, and what it protects.
#[derive(Debug)]
pub(crate) struct Protection {
    /// Its key.
    pub key: &'static str,
    /// The value that switches it on.
    pub on: &'static str,
    /// The value by which an operator says that it is meant to be off; `None` where BookKeeper's own file has that value, which says
    /// nothing therefore.
    pub off: Option<&'static str>,
    /// What happens without it, as a main clause.
    pub harm: &'static str,
}

/// A flag: its name, and how its value is read.
type Flag<T> = (&'static str, fn(&BookieArgs) -> T);

/// A place in the draft, and the flag that fills it as well.
#[derive(Debug)]
pub(crate) struct Place<T: 'static> {
    pub put: fn(&mut Draft, T),
    /// The value in force; `None` where there is none.
    pub get: fn(&Draft) -> Option<T>,
    pub flag: Option<Flag<Option<T>>>,
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Place<T> {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> Place<T> {
    pub(crate) const fn new(put: fn(&mut Draft, T), get: fn(&Draft) -> Option<T>) -> Place<T> {
        Place { put, get, flag: None }
    }

    /// The flag that gives the same, and wins.
    pub(crate) const fn flag(self, name: &'static str, of: fn(&BookieArgs) -> Option<T>) -> Place<T> {
        Place { flag: Some((name, of)), ..self }
    }
}

/// The place of a field: `at!(config.read_only)`, a number with its type (`at!(config.read_threads as usize)`), a field that may be
/// `None` without a value (`at!(config.ledger_memory, if given)`), a time of which zero means never (`at!(repair.work.mark_grace, or never)`),
/// or a value that a rule goes on with (`at!(address.interface => |draft| ...)`, and what is shown then), a path of those from the root on
/// (`at!(auth.users, from root => |draft| ...)`).
macro_rules! at {
    ($($field:ident).+) => {
        $crate::table::key::Place::new(|draft, value| draft.$($field).+ = value, |draft| Some(draft.$($field).+.clone()))
    };
    ($($field:ident).+ as $number:ty) => {
        $crate::table::key::Place::new(
            |draft, value| draft.$($field).+ = value.clamp(0, <$number>::MAX as i128) as $number,
            |draft| Some(draft.$($field).+ as i128),
        )
    };
    ($($field:ident).+, if given) => {
        $crate::table::key::Place::new(|draft, value| draft.$($field).+ = Some(value), |draft| draft.$($field).+.clone())
    };
    ($($field:ident).+, or never) => {
        $crate::table::key::Place::new(
            |draft, value: std::time::Duration| draft.$($field).+ = (!value.is_zero()).then_some(value),
            |draft| Some(draft.$($field).+.unwrap_or_default()),
        )
    };
    ($($field:ident).+ => $shown:expr) => {
        $crate::table::key::Place::new(|draft, value| draft.$($field).+ = Some(value), $shown)
    };
    ($($field:ident).+, from root => $shown:expr) => {
        $crate::table::key::Place::new(|draft, path| draft.$($field).+ = Some($crate::table::key::from_root(path)), $shown)
    };
    ($($field:ident).+ as $number:ty => $shown:expr) => {
        $crate::table::key::Place::new(
            |draft, value| draft.$($field).+ = Some(value.clamp(0, <$number>::MAX as i128) as $number),
            $shown,
        )
    };
}
pub(super) use at;

/// An absolute path. Without a working directory the path stays relative, and opening the file reports that.
pub(super) fn from_root(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The type of a value, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Switch(Place<bool>),
    Number(Place<i128>),
    /// In bytes.
    Mebibytes(Place<u64>),
    /// In units of so many milliseconds.
    Time(u64, Place<Duration>),
    Share(Share, Place<f64>),
    Text(Place<String>),
    Path(Place<PathBuf>),
    /// One of these words, by its number.
    Word(&'static [&'static str], Place<usize>),
    Password(Place<PasswordSource>),
    /// The file with a password.
    PasswordFile(Place<PasswordSource>),
    /// Text of a form of its own: what reads it into the draft, or completes "KEY=VALUE: ", and the value in force.
    Form(fn(&mut Draft, &str) -> Result<(), String>, fn(&Draft) -> Option<String>),
    /// A rule takes it, together with others.
    Rule,
    /// As `Rule`. The value in force is the one that was given, or this default.
    Given(&'static str),
}

/// Does the same with the place of a value, whatever its type; `None` where it has none.
macro_rules! with_place {
    ($value:expr, $place:ident => $body:expr) => {
        match $value {
            None | Some(Value::Form(..) | Value::Rule | Value::Given(_)) => None,
            Some(Value::Switch($place)) => Some($body),
            Some(Value::Number($place)) => Some($body),
            Some(Value::Mebibytes($place)) => Some($body),
            Some(Value::Time(_, $place)) => Some($body),
            Some(Value::Share(_, $place)) => Some($body),
            Some(Value::Text($place)) => Some($body),
            Some(Value::Path($place)) => Some($body),
            Some(Value::Word(_, $place)) => Some($body),
            Some(Value::Password($place) | Value::PasswordFile($place)) => Some($body),
        }
    };
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name; one that ends in `*` stands for all keys that begin with the rest.
    pub name: &'static str,
    /// How we treat it.
    pub status: Status,
    /// Its description.
    pub about: &'static str,
    /// BookKeeper's default, as it would stand in a file; empty when there is none.
    pub java: &'static str,
    /// The unit of its value; empty for words, names and counts.
    pub unit: &'static str,
    /// Its value is not to be printed.
    pub is_secret: bool,
    /// The key that shows what this one says, too.
    pub alias_of: Option<&'static str>,
    /// The key whose value this one leads to, if it has no other.
    pub leads_to: Option<&'static str>,
    value: Option<Value>,
    /// Says whether the value counts; a value that does not is ignored, faults included.
    only_if: Option<fn(&Draft) -> bool>,
    /// Numbers that are no fault.
    accepts: (i128, i128),
    /// Within these bounds an accepted number is taken, silently.
    taken: (i128, i128),
    /// Zero is accepted besides.
    accepts_zero: bool,
    /// The fault reported for a number that is not accepted, after "KEY=VALUE: ". Keys that take negative numbers report it for other text, too.
    advice: Option<&'static str>,
    /// How a value was understood, after "KEY=VALUE: ".
    note: Option<fn(&Draft, &str) -> Option<String>>,
    shown: Option<fn(&Draft) -> String>,
    asks: Option<fn(&str) -> bool>,
    /// The protection that an operator who sets the key expects.
    protection: Option<&'static Protection>,
    /// A flag that a rule looks at, because it gives several keys.
    flag: Option<Flag<bool>>,
}

/// A key that has an effect, and lacks the place of its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named(Key);

impl Named {
    pub(super) const fn new(key: Key) -> Named {
        Named(key)
    }

    const fn value(self, value: Value) -> Key {
        Key { value: Some(value), ..self.0 }
    }

    pub(super) const fn switch(self, place: Place<bool>) -> Key {
        self.value(Value::Switch(place))
    }

    pub(super) const fn number(self, place: Place<i128>) -> Key {
        self.value(Value::Number(place))
    }

    pub(super) const fn bytes(self, place: Place<i128>) -> Key {
        self.number(place).unit("bytes")
    }

    pub(super) const fn mebibytes(self, place: Place<u64>) -> Key {
        self.value(Value::Mebibytes(place)).unit("MB")
    }

    pub(super) const fn millis(self, place: Place<Duration>) -> Key {
        self.value(Value::Time(1, place)).unit("ms")
    }

    pub(super) const fn seconds(self, place: Place<Duration>) -> Key {
        self.value(Value::Time(1000, place)).unit("s")
    }

    pub(super) const fn share(self, bounds: Share, place: Place<f64>) -> Key {
        self.value(Value::Share(bounds, place))
    }

    pub(super) const fn text(self, place: Place<String>) -> Key {
        self.value(Value::Text(place))
    }

    pub(super) const fn path(self, place: Place<PathBuf>) -> Key {
        self.value(Value::Path(place))
    }

    pub(super) const fn word(self, words: &'static [&'static str], place: Place<usize>) -> Key {
        self.value(Value::Word(words, place))
    }

    pub(super) const fn password(self, place: Place<PasswordSource>) -> Key {
        Key { is_secret: true, ..self.value(Value::Password(place)) }
    }

    pub(super) const fn password_file(self, place: Place<PasswordSource>) -> Key {
        self.value(Value::PasswordFile(place))
    }

    pub(super) const fn form(
        self,
        read: fn(&mut Draft, &str) -> Result<(), String>,
        get: fn(&Draft) -> Option<String>,
    ) -> Key {
        self.value(Value::Form(read, get))
    }

    /// A rule takes it, together with others; `shown` is its value in force.
    pub(super) const fn by_rule(self, shown: fn(&Draft) -> String) -> Key {
        self.value(Value::Rule).shown(shown)
    }

    /// As above; the given value is in force as it stands, and `default` where there is none.
    pub(super) const fn as_given(self, default: &'static str) -> Key {
        self.value(Value::Given(default))
    }
}

/// The largest numbers that a file may have.
const U64: (i128, i128) = (0, u64::MAX as i128);
const I64: (i128, i128) = (i64::MIN as i128, i64::MAX as i128);

impl Key {
    pub(super) const fn new(
        name: &'static str,
        status: Status,
        java: &'static str,
        about: &'static str,
    ) -> Key {
        Key {
            name,
            status,
            about,
            java,
            unit: "",
            is_secret: false,
            alias_of: None,
            leads_to: None,
            value: None,
            only_if: None,
            accepts: U64,
            taken: U64,
            accepts_zero: false,
            advice: None,
            note: None,
            shown: None,
            asks: None,
            protection: None,
            flag: None,
        }
    }

    /// Ignores the value, faults included, unless the rows above make it count.
    pub(super) const fn only_if(self, counts: fn(&Draft) -> bool) -> Key {
        Key { only_if: Some(counts), ..self }
    }

    /// Other numbers are faults.
    pub(super) const fn within(self, least: i128, most: i128) -> Key {
        Key { accepts: (least, most), taken: (least, most), ..self }
    }

    /// Numbers below zero are no fault.
    pub(super) const fn signed(self) -> Key {
        Key { accepts: I64, taken: I64, ..self }
    }

    /// Other numbers are taken as the nearest of these.
    pub(super) const fn taken_as(self, least: i128, most: i128) -> Key {
        Key { taken: (least, most), ..self }
    }

    pub(super) const fn at_least(self, least: i128) -> Key {
        let most = self.taken.1;
        self.taken_as(least, most)
    }

    /// Zero is no fault either.
    pub(super) const fn or_zero(self) -> Key {
        Key { accepts_zero: true, ..self }
    }

    pub(super) const fn advice(self, advice: &'static str) -> Key {
        Key { advice: Some(advice), ..self }
    }

    pub(super) const fn note(self, note: fn(&Draft, &str) -> Option<String>) -> Key {
        Key { note: Some(note), ..self }
    }

    pub(super) const fn unit(self, unit: &'static str) -> Key {
        Key { unit, ..self }
    }

    pub(super) const fn flag(self, name: &'static str, is_given: fn(&BookieArgs) -> bool) -> Key {
        Key { flag: Some((name, is_given)), ..self }
    }

    pub(super) const fn shown(self, shown: fn(&Draft) -> String) -> Key {
        Key { shown: Some(shown), ..self }
    }

    pub(super) const fn asks(self, asks: fn(&str) -> bool) -> Key {
        Key { asks: Some(asks), ..self }
    }

    /// Whoever gives it wants this protection: that must be switched on.
    pub(super) const fn wants(self, protection: &'static Protection) -> Key {
        Key { protection: Some(protection), ..self }
    }

    pub(super) const fn secret(self) -> Key {
        Key { is_secret: true, ..self }
    }

    pub(super) const fn alias_of(self, key: &'static str) -> Key {
        Key { alias_of: Some(key), ..self }
    }

    pub(super) const fn leads_to(self, key: &'static str) -> Key {
        Key { leads_to: Some(key), ..self }
    }

    /// Whether it does anything here.
    pub fn has_effect(&self) -> bool {
        self.value.is_some()
    }

    /// Whether a rule takes its value.
    #[cfg(test)]
    pub(crate) fn is_of_rule(&self) -> bool {
        matches!(self.value, Some(Value::Rule | Value::Given(_)))
    }

    /// Whether a value asks for something that does not exist here: for `Refused` a fault, for `NoMeaning` a warning.
    pub fn asks_for_more(&self, text: &str) -> bool {
        match (self.asks, self.status) {
            (Some(asks), _) => asks(text),
            (None, status) => matches!(status, Status::Refused(_)),
        }
    }

    /// Whether whoever gives it wants the protection that this key switches on.
    pub(crate) fn is_for(&self, protection: &Protection) -> bool {
        self.protection.is_some_and(|wanted| wanted.key == protection.key)
    }

    /// A value as it may be printed.
    pub fn printable<'a>(&self, text: &'a str) -> &'a str {
        if self.is_secret { "..." } else { text }
    }

    /// The flag of `bindery bookie` that wins over it, and whether it was given.
    pub fn flag_in(&self, args: &BookieArgs) -> Option<(&'static str, bool)> {
        let own = with_place!(&self.value, place => {
            place.flag.map(|(name, value)| (name, value(args).is_some()))
        });
        own.flatten().or(self.flag.map(|(name, is_given)| (name, is_given(args))))
    }

    /// The name of that flag.
    pub fn flag_name(&self) -> Option<&'static str> {
        self.flag_in(&BookieArgs::default()).map(|(name, _)| name)
    }

    /// The value in force, as it would stand in a file; `None` where the key has no effect.
    pub fn value_in(&self, draft: &Draft) -> Option<String> {
        let value = self.value.as_ref()?;
        if let Some(shown) = self.shown {
            return Some(shown(draft));
        }
        fn of<T>(place: &Place<T>, draft: &Draft, text: impl FnOnce(T) -> String) -> String {
            (place.get)(draft).map_or_else(String::new, text)
        }
        Some(match value {
            Value::Switch(place) => of(place, draft, |value| value.to_string()),
            Value::Number(place) => of(place, draft, |value| value.to_string()),
            Value::Mebibytes(place) => of(place, draft, |bytes| (bytes >> 20).to_string()),
            Value::Time(unit, place) => {
                of(place, draft, |time| (time.as_millis() / u128::from(*unit)).to_string())
            }
            Value::Share(_, place) => of(place, draft, |value| value.to_string()),
            Value::Text(place) => of(place, draft, |value| value),
            Value::Path(place) => of(place, draft, |path| path.display().to_string()),
            Value::Word(words, place) => of(place, draft, |at| words[at].to_owned()),
            Value::Password(place) => of(place, draft, |source| match source {
                PasswordSource::Given(_) => "...".to_owned(),
                _ => String::new(),
            }),
            Value::PasswordFile(place) => of(place, draft, |source| match source {
                PasswordSource::File { path, .. } => path.display().to_string(),
                _ => String::new(),
            }),
            Value::Form(_, get) => get(draft).unwrap_or_default(),
            Value::Given(default) => draft.text(self.name).unwrap_or_else(|| (*default).to_owned()),
            Value::Rule => String::new(),
        })
    }

    /// The default here, as it would stand in a file; empty when there is none.
    pub fn default(&self) -> String {
        self.value_in(&Draft::default()).unwrap_or_default()
    }

    /// Puts its value into the draft, unless a rule takes it: the flag's, or else the file's, which is checked in either case.
    pub(crate) fn take(&self, args: &BookieArgs, file: &mut Values, draft: &mut Draft) {
        let is_of_rule = matches!(self.value, None | Some(Value::Rule | Value::Given(_)));
        if is_of_rule || self.only_if.is_some_and(|counts| !counts(draft)) {
            return;
        }
        if let Some(text) = file.take(self.name) {
            // A value that a flag replaces must leave no trace.
            let mut aside = Draft::default();
            let is_won = self.flag_in(args).is_some_and(|(_, is_given)| is_given) && self.flag.is_none();
            let target = if is_won { &mut aside } else { &mut *draft };
            match self.put(&text, target) {
                Err(why) => file.fault(self.name, format!("{}={text}: {why}", self.name)),
                Ok(()) => {
                    if let Some(how) = self.note.and_then(|note| note(target, &text)) {
                        file.note(self.name, format!("{}={text}: {how}", self.name));
                    }
                }
            }
        }
        with_place!(&self.value, place => {
            if let Some(value) = place.flag.and_then(|(_, value)| value(args)) {
                (place.put)(draft, value);
            }
        });
    }

    /// Puts a value; the error completes "KEY=VALUE: ".
    fn put(&self, text: &str, draft: &mut Draft) -> Result<(), String> {
        let whole = || self.whole(text).map(|number| u64::try_from(number).unwrap_or_default());
        match &self.value {
            None | Some(Value::Rule | Value::Given(_)) => {}
            Some(Value::Switch(place)) => {
                (place.put)(draft, truth(text).ok_or_else(|| "give true or false".to_owned())?);
            }
            Some(Value::Number(place)) => (place.put)(draft, self.whole(text)?),
            Some(Value::Mebibytes(place)) => {
                (place.put)(draft, whole()?.saturating_mul(1 << 20));
            }
            Some(Value::Time(unit, place)) => {
                (place.put)(draft, Duration::from_millis(whole()?.saturating_mul(*unit)));
            }
            Some(Value::Share(bounds, place)) => (place.put)(draft, share(text, *bounds)?),
            Some(Value::Text(place)) => (place.put)(draft, text.to_owned()),
            Some(Value::Path(place)) => (place.put)(draft, PathBuf::from(text)),
            Some(Value::Word(words, place)) => {
                let found = words.iter().position(|word| *word == text);
                (place.put)(draft, found.ok_or_else(|| format!("give {}", listed(words)))?);
            }
            Some(Value::Password(place)) => {
                (place.put)(draft, PasswordSource::Given(Password::new(text)));
            }
            Some(Value::PasswordFile(place)) => {
                let path = from_root(PathBuf::from(text));
                (place.put)(draft, PasswordSource::File { setting: self.name, path });
            }
            Some(Value::Form(read, _)) => read(draft, text)?,
        }
        Ok(())
    }

    fn whole(&self, text: &str) -> Result<i128, String> {
        let (least, most) = self.accepts;
        let number = text.parse::<i128>().ok();
        if self.accepts_zero && number == Some(0) {
            return Ok(0);
        }
        if let Some(number) = number.filter(|number| (least..=most).contains(number)) {
            return Ok(number.clamp(self.taken.0, self.taken.1));
        }
        if let Some(advice) = self.advice.filter(|_| number.is_some() || least < 0) {
            return Err(advice.to_owned());
        }
        Err(match self.accepts {
            U64 => "give a whole number, not below 0".to_owned(),
            (..0, _) => "give a whole number".to_owned(),
            _ => format!("give a whole number from {least} to {most}"),
        })
    }
}

/// `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
