//! Options of Java's shell: one dash or two, a short form and a long one.

use crate::exit::Failure;

/// An option that a command takes.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// For example `f`.
    pub short: &'static str,
    /// For example `force`.
    pub long: &'static str,
    /// Whether the next word is its value.
    pub has_value: bool,
}

impl Known {
    /// An option without a value.
    pub const fn flag(short: &'static str, long: &'static str) -> Known {
        Known { short, long, has_value: false }
    }

    /// An option with a value.
    pub const fn value(short: &'static str, long: &'static str) -> Known {
        Known { short, long, has_value: true }
    }
}

/// What was given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    options: Vec<(&'static str, String)>,
    /// Words that are no options.
    pub rest: Vec<String>,
}

impl Given {
    /// Reads the words of a command that takes options alone.
    ///
    /// # Errors
    /// As [`Given::read`], or a word that is no option.
    pub fn options(command: &str, words: &[String], known: &[Known]) -> Result<Given, Failure> {
        let given = Given::read(command, words, known)?;
        match given.rest.first() {
            None => Ok(given),
            Some(word) => Err(Failure::usage(format!("{command}: what is {word:?}? It takes options only"))),
        }
    }

    /// Reads the words of a command.
    ///
    /// # Errors
    /// An option that the command does not take, or one without its value.
    pub fn read(command: &str, words: &[String], known: &[Known]) -> Result<Given, Failure> {
        let mut given = Given::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                given.rest.push(word.clone());
                continue;
            };
            let (name, joined) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let Some(option) = known.iter().find(|option| option.short == name || option.long == name) else {
                let all: Vec<String> = known.iter().map(|option| format!("-{}", option.long)).collect();
                let takes = if all.is_empty() { "no options".to_owned() } else { all.join(", ") };
                return Err(Failure::usage(format!("{command} {word}: {command} takes {takes}")));
            };
            let value = match (option.has_value, joined) {
                (true, Some(value)) => value,
                (true, None) => words
                    .next()
                    .cloned()
                    .ok_or_else(|| Failure::usage(format!("{command} {word} needs a value behind it")))?,
                (false, None) => String::new(),
                (false, Some(_)) => {
                    return Err(Failure::usage(format!("{command} {word}: -{} takes no value", option.long)));
                }
            };
            given.options.push((option.long, value));
        }
        Ok(given)
    }

    /// Whether an option was given, by its long name.
    pub fn has(&self, long: &str) -> bool {
        self.value(long).is_some()
    }

    /// The value of an option, the last one where it was repeated.
    pub fn value(&self, long: &str) -> Option<&str> {
        self.options.iter().rev().find(|(name, _)| *name == long).map(|(_, value)| &value[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Known; 2] = [Known::flag("f", "force"), Known::value("s", "set")];

    fn read(words: &str) -> Result<Given, String> {
        let words: Vec<String> = words.split_ascii_whitespace().map(str::to_owned).collect();
        Given::read("try", &words, &KNOWN).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_come_as_java_takes_them() {
        for words in ["-f -s 3", "--force --set 3", "-force -set=3", "-s 2 -f -s 3"] {
            let given = read(words).unwrap();
            assert!(given.has("force"), "{words}");
            assert_eq!(given.value("set"), Some("3"), "{words}");
        }
        assert_eq!(read("a -f b").unwrap().rest, ["a", "b"]);
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert_eq!(read("-x").unwrap_err(), "try -x: try takes -force, -set");
        assert_eq!(read("-s").unwrap_err(), "try -s needs a value behind it");
        assert_eq!(read("-f=1").unwrap_err(), "try -f=1: -force takes no value");
        assert!(Given::options("try", &["a".to_owned()], &KNOWN).is_err());
    }
}
